"""What the sources say of their own shape: who imports whom, and how long and how named things are."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
# locals that do not say what they hold
VAGUE = frozenset({"found", "made", "one", "told", "said", "taught", "thing", "stuff", "res", "tmp", "ret"})
Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class House:
    """All modules of the sources.

    Attributes:
        lines: module → its lines.
        above: module → modules of ours that it imports at its top.
        inside: module → those that it imports in functions.
        typing: module → those that it imports for type checkers only; doors of rooms are not counted.
        unexplained: imports inside functions without a comment.
        classes: name → modules that define a class of that name.
        vague: local name → how often it is set.
        long_functions: (lines, name) of functions over 50 lines.
        others: module → packages of others that it imports at the top.
        others_inside: the same in functions.
    """

    lines: dict[str, int] = field(default_factory=dict)
    above: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    inside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    typing: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unexplained: list[str] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    vague: Counter[str] = field(default_factory=Counter)
    long_functions: list[tuple[int, str]] = field(default_factory=list)
    others: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    others_inside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def read(source: Path = SOURCE) -> House:
    """Read every file below `source`; nothing is imported."""
    house = House()
    files = {_module(file, source): file for file in sorted(source.rglob("*.py"))}
    for module, file in files.items():
        text = file.read_text(encoding="utf-8")
        house.lines[module] = text.count("\n")
        _walk(ast.parse(text), module, set(files), text.splitlines(), house, where="above")
        if file.name == "__init__.py":
            house.typing.pop(module, None)  # the door of a room names what stands in it
    return house


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach one another, largest first (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []
    for start in sorted(graph):
        work = [] if start in index else [(start, iter(sorted(graph[start])))]
        while work:
            node, rest = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            child = next(rest, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    components.append(sorted(stack[cut:]))
                    del stack[cut:]
            elif child not in index:
                work.append((child, iter(sorted(graph.get(child, ())))))
            elif child in stack:
                low[node] = min(low[node], index[child])
    return sorted((part for part in components if len(part) > 1), key=len, reverse=True)


def _module(file: Path, source: Path) -> str:
    return ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def _walk(
    node: ast.AST,
    module: str,
    modules: set[str],
    lines: list[str],
    house: House,
    *,
    where: str,
    above: str = "",
) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            _imports(child, module, modules, lines, house, where=where)
        if isinstance(child, ast.ClassDef):
            house.classes[child.name].append(module)
        if isinstance(child, Functions) and (length := (child.end_lineno or 0) - child.lineno + 1) > 50:
            house.long_functions.append((length, f"{module}.{child.name}"))
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and child.id in VAGUE:
            house.vague[child.id] += 1
        deeper = where
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            deeper = "typing"
        elif isinstance(child, Functions):
            deeper = "inside"
        _walk(child, module, modules, lines, house, where=deeper)


def _imports(
    node: ast.Import | ast.ImportFrom,
    module: str,
    modules: set[str],
    lines: list[str],
    house: House,
    where: str,
) -> None:
    targets = set(_targets(node, modules)) - {module}
    targets = {name for name in targets if not any(other.startswith(f"{name}.") for other in targets)}
    getattr(house, where)[module] |= targets
    if where != "typing" and not targets:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        packages = {name.partition(".")[0] for name in names}
        (house.others_inside if where == "inside" else house.others)[module] |= packages
    before = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
    if where == "inside" and targets and "#" not in lines[node.lineno - 1] and not before.startswith("#"):
        house.unexplained.append(f"{module}:{node.lineno}")


def _targets(node: ast.Import | ast.ImportFrom, modules: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    yield from (name for name in names if name in modules)
