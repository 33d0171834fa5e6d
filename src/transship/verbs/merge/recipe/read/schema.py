"""A recipe as data, and its reader: every key that has a meaning; an error with its line for any other."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from transship.errors import CheckpointError, OptionError, TransshipWarning
from transship.registry import unknown
from transship.verbs.merge.protocol import (
    LearnedMethod,
    RecipeMethod,
    parameters_of,
    recipe_method,
    recipe_methods,
)
from transship.verbs.merge.recipe.read.document import Block, Items, parse_documents, read_text
from transship.verbs.merge.recipe.read.parameters import Setting, Settings, coerce, read_settings, resolve
from transship.verbs.merge.recipe.read.sources import (
    CHAT_TEMPLATES,
    DataRule,
    ModelReference,
    TokenizerRule,
    WeightSearch,
    read_data,
    read_reference,
    read_search,
    read_tokenizer,
)

DTYPES = ("bfloat16", "float16", "float32", "float64")
EXTRA_TENSORS = ("base", "keep", "drop", "error")
HEADS = ("auto", "merge", "per_task", "carried", "carried_polished", "tuned")
COMPATIBILITY = ("error", "warn", "off")
LORA_SPACES = ("full", "core", "knots")
ARITHMETIC = ("float32", "mergekit")
SHARES = ("density", "gamma", "select_topk")


@dataclass(frozen=True)
class ModelEntry:
    """One model of a slice: its layers [first, last), or None for all, its own parameters and its data."""

    model: ModelReference
    layers: tuple[int, int] | None
    parameters: dict[str, Setting]
    where: str
    data: DataRule | None = None


@dataclass(frozen=True)
class Slice:
    """Layers of the output, made of as many layers of each source."""

    sources: tuple[ModelEntry, ...]
    base_model: ModelReference | None
    parameters: dict[str, Setting]
    where: str


@dataclass(frozen=True)
class Module:
    """The slices of one stack of layers; the name is None for a model with one stack."""

    name: str | None
    slices: tuple[Slice, ...]
    parameters: dict[str, Setting]
    whole: bool


@dataclass(frozen=True)
class Recipe:
    """Everything a recipe says.

    Attributes:
        method: the method's name, with underscores as recipes write it.
        modules: one without a name, or one for each stack of layers.
        base_model: whose weights the updates are taken against.
        dtype: what the output is stored in unless `out_dtype` says otherwise; None for the inputs' own.
        out_dtype: what the output is stored in.
        tokenizer: where the vocabulary comes from, None for that of the base or first model.
        chat_template: `auto`, a built-in name, Jinja text, or None to keep the donor's.
        parameters: the settings at the top level.
        arithmetic: `float32`, or `mergekit` to round every step to `dtype` as mergekit does.
        seed: fixes the random methods.
        extra_tensors: what happens to tensors that not all models have.
        heads: whether task heads are merged, kept one for each model, or fitted to the merged model on data.
        lora_rank: the rank of a merged adapter; None for the sum of the ranks, which is exact for sums.
        lora_space: where adapters are joined by methods that are no sums: `full`, `core` or `knots`.
        compatibility: whether a model that is no fine-tune of the base stops the merge.
        data: what holds for the data of all models; None where the recipe has no such rule.
        weights: how the models' weights are searched for; None where the recipe gives them.
        name: what other documents of the same file call the output.
        path: the file.
        text: the recipe as written, for the model card.
    """

    method: str
    modules: tuple[Module, ...]
    base_model: ModelReference | None = None
    dtype: str | None = None
    out_dtype: str | None = None
    tokenizer: TokenizerRule | None = None
    chat_template: str | None = None
    parameters: dict[str, Setting] = field(default_factory=dict)
    arithmetic: str = "float32"
    seed: int = 0
    extra_tensors: str = "base"
    heads: str = "auto"
    lora_rank: int | None = None
    lora_space: str = "full"
    compatibility: str = "error"
    data: DataRule | None = None
    weights: WeightSearch | None = None
    name: str | None = None
    path: str = "recipe"
    text: str = ""

    @property
    def kind(self) -> type[RecipeMethod]:
        return cast(type[RecipeMethod], recipe_method(self.method))

    @property
    def entries(self) -> list[ModelEntry]:
        """Return the models of all slices, in the recipe's order."""
        return [entry for module in self.modules for part in module.slices for entry in part.sources]

    def references(self) -> tuple[ModelReference, ...]:
        """Return the models in the order in which the recipe lists them, base last unless it is listed."""
        listed = [entry.model for entry in self.entries]
        bases = [part.base_model for module in self.modules for part in module.slices if part.base_model]
        tokens = self.tokenizer.models() if self.tokenizer else ()
        every = [*listed, *bases, *([self.base_model] if self.base_model else []), *tokens]
        return tuple(dict.fromkeys(every))

    def data_of(self, reference: ModelReference) -> DataRule | None:
        """Return the data of one model, with the recipe's defaults; None where it has none."""
        rules = [entry.data for entry in self.entries if entry.model == reference and entry.data is not None]
        return rules[0].over(self.data) if rules else None

    @property
    def runs_models(self) -> bool:
        """Return whether models run on data before anything is written."""
        return issubclass(self.kind, LearnedMethod) or self.weights is not None or self.fits_heads

    def value(
        self,
        field: str,
        scopes: Sequence[Settings],
        tensor: str,
        position: float,
        model: ModelReference | None = None,
    ) -> Any:
        """Return a field of the method for one tensor, None where no rule gives it.

        Args:
            field: of the method's class.
            scopes: settings, the innermost first; those of the recipe are the last.
            tensor: whose name filters see.
            position: in the depth of its slice, from 0 to 1.
            model: whose value it is, where each model has its own.
        """
        spelt, whose = self.kind.spelling.get(field, field), f" of {model}" if model else ""
        value = resolve((*scopes, self.parameters), spelt, tensor, position)
        if value is not None:
            return coerce(self.kind, field, value, f"{self.path}, {spelt}{whose}")
        if field in self.kind.required and not (field == "weight" and self.weights is not None):
            appended = model is not None and model == self.base_model and self.kind.base == "input"
            raise self.error(
                f"{self.method} needs {spelt}{f' for {model}' if model else ''}, "
                f"and no rule gives it for tensor '{tensor}'",
                f"add parameters: {{{spelt}: …}}{', or remove base_model' if appended else ''}",
            )
        return None

    def error(self, what: str, fix: str) -> OptionError:
        """Return the error about the recipe as a whole."""
        return OptionError(what, where=self.path, fix=fix)

    def complain(self, what: str, where: str, fix: str) -> None:
        """Raise or warn that models do not belong together, as `compatibility` says."""
        if self.compatibility == "error":
            raise CheckpointError(what, where=where, fix=f"{fix}, or set compatibility: warn")
        if self.compatibility == "warn":
            warnings.warn(f"{where}: {what}", TransshipWarning, stacklevel=2)

    @property
    def fits_heads(self) -> bool:
        """Return whether heads are fitted to the merged model, on data."""
        return self.heads in ("carried", "carried_polished", "tuned")

    @property
    def donor(self) -> ModelReference:
        """Return the model that gives config and tokenizer: the base, or else the first listed."""
        return self.base_model or self.references()[0]


_KEYS = (
    ("merge_method", "models", "slices", "modules", "base_model", "dtype", "out_dtype"),
    ("tokenizer_source", "tokenizer", "chat_template", "parameters", "name", "arithmetic", "seed"),
    ("extra_tensors", "heads", "lora_rank", "lora_space", "compatibility", "data", "weights"),
)
KEYS = tuple(key for row in _KEYS for key in row)


def read_recipes(path: str | Path) -> list[Recipe]:
    """Return the recipes of a file: one, or several divided by `---`, the later ones using the earlier."""
    return parse_recipes(read_text(path), str(path))


def parse_recipes(text: str, path: str = "recipe") -> list[Recipe]:
    """Return the recipes of a text."""
    documents = parse_documents(text, path)
    recipes = [read_recipe(document, text) for document in documents]
    seen: dict[str, int] = {}
    for recipe, document in zip(recipes[:-1], documents[:-1], strict=True):
        if recipe.name is None:
            raise document.error(
                "a recipe before the last of a file has no name, so that nothing can use it", "add name:"
            )
        if recipe.name in seen:
            raise document.error(
                f"two recipes are called '{recipe.name}'", "give each its own name", key="name"
            )
        seen[recipe.name] = document.line
    return recipes


def read_recipe(block: Block, text: str = "") -> Recipe:
    """Return one recipe from its mapping."""
    block.expect(KEYS, "a recipe")
    method = _method(block)
    base = read_reference(block, "base_model") if block.get("base_model") is not None else None
    if "tokenizer" in block and "tokenizer_source" in block:
        raise block.error(
            "both tokenizer and tokenizer_source are given", "keep one of them", key="tokenizer"
        )
    recipe = Recipe(
        method=method,
        modules=_modules(block),
        base_model=base,
        dtype=_dtype(block, "dtype"),
        out_dtype=_dtype(block, "out_dtype"),
        tokenizer=read_tokenizer(block),
        chat_template=_chat_template(block),
        parameters=read_settings(block),
        arithmetic=block.choice("arithmetic", ARITHMETIC),
        seed=block.count("seed", least=0) or 0,
        extra_tensors=block.choice("extra_tensors", EXTRA_TENSORS),
        heads=block.choice("heads", HEADS).replace("-", "_"),
        lora_rank=block.count("lora_rank"),
        lora_space=block.choice("lora_space", LORA_SPACES),
        compatibility=block.choice("compatibility", COMPATIBILITY),
        data=read_data(block, path=False),
        weights=read_search(block),
        name=block.text("name"),
        path=block.path,
        text=text,
    )
    _check_parameters(recipe)
    return recipe


def _method(block: Block) -> str:
    if "merge_method" not in block:
        raise block.error("the recipe has no merge_method", "add merge_method: linear, or another")
    name = str(block["merge_method"])
    if recipe_method(name) is None:
        raise unknown(name, recipe_methods(), kind="merge_method", where=block.where("merge_method"))
    return name.replace("++", "_plus_plus").replace("-", "_")


def _check_parameters(recipe: Recipe) -> None:
    """Refuse parameters that the method does not have, wherever they stand."""
    kind = recipe.kind
    known = [kind.spelling.get(name, name) for name in parameters_of(kind, "recipe")]
    scopes = [recipe.parameters, *(entry.parameters for entry in recipe.entries)]
    for module in recipe.modules:
        scopes += [module.parameters, *(part.parameters for part in module.slices)]
    for scope in scopes:
        for name, setting in scope.items():
            if name not in known:
                raise unknown(name, known, kind=f"parameter of {recipe.method}", where=setting.where)
            _check_values(kind, name, setting)


def _check_values(kind: type[RecipeMethod], name: str, setting: Setting) -> None:
    """Refuse values of another type than the parameter's, and shares outside the unit interval."""
    own = next((field for field, spelt in kind.spelling.items() if spelt == name), name)
    for rule in setting.rules:
        for value in rule.value if isinstance(rule.value, tuple) else (rule.value,):
            number = coerce(kind, own, value, setting.where)
            if name in SHARES and not 0 <= number <= 1:
                raise OptionError(
                    f"{name} is a share of a tensor's entries, and {value} is none",
                    where=setting.where,
                    fix="give a number from 0 to 1",
                )


def _modules(block: Block) -> tuple[Module, ...]:
    given = [key for key in ("models", "slices", "modules") if block.get(key) is not None]
    if len(given) != 1:
        what = f"the recipe has {' and '.join(given)}" if given else "the recipe lists no models"
        raise block.error(
            what, "give exactly one of models, slices, modules", key=given[-1] if given else None
        )
    if given != ["modules"]:
        return (_module(None, block, {}),)
    modules = block["modules"]
    if not isinstance(modules, Block) or not modules:
        raise block.error("modules is a mapping of names", "write modules: {encoder: …}", key="modules")
    named = []
    for name in modules:
        part = modules[name]
        if not isinstance(part, Block):
            raise modules.error(f"the module '{name}' is no mapping", "give it models: or slices:", key=name)
        part.expect(("models", "slices", "parameters"), f"the module '{name}'")
        if (part.get("models") is None) == (part.get("slices") is None):
            raise part.error(f"the module '{name}' needs models or slices", "give exactly one of them")
        named.append(_module(name, part, read_settings(part)))
    return tuple(named)


def _module(name: str | None, block: Block, parameters: dict[str, Setting]) -> Module:
    if block.get("models") is not None:
        sources = tuple(_entry(item, False) for item in block.blocks("models"))
        return Module(name, (Slice(sources, None, {}, block.where("models")),), parameters, True)
    slices = tuple(_slice(item) for item in block.blocks("slices"))
    return Module(name, slices, parameters, False)


def _slice(block: Block) -> Slice:
    block.expect(("sources", "base_model", "parameters", "residual_weight"), "a slice")
    sources = tuple(_entry(item, True) for item in block.blocks("sources"))
    base = read_reference(block, "base_model") if block.get("base_model") is not None else None
    lengths = {source.layers[1] - source.layers[0] for source in sources if source.layers}
    if len(lengths) > 1:
        raise block.error(
            f"the sources of a slice have {', '.join(map(str, sorted(lengths)))} layers",
            "give all of them equally many",
        )
    return Slice(sources, base, read_settings(block), block.where())


def _entry(block: Block, ranged: bool) -> ModelEntry:
    block.expect(("model", "parameters", "layer_range" if ranged else "data"), "a model entry")
    if block.get("model") is None:
        raise block.error("the entry names no model", "add model: path")
    layers = _layer_range(block) if ranged else None
    data = None if ranged else read_data(block)
    return ModelEntry(read_reference(block, "model"), layers, read_settings(block), block.where(), data)


def _layer_range(block: Block) -> tuple[int, int]:
    value = block.get("layer_range")
    if value is None:
        raise block.error("the source has no layer_range", "add layer_range: [first, one past the last]")
    numbers = isinstance(value, Items) and len(value) == 2 and all(type(item) is int for item in value)
    if not numbers or not 0 <= value[0] < value[1]:
        raise block.error(
            "layer_range takes two rising layer numbers",
            "write layer_range: [0, 8] for layers 0 to 7",
            key="layer_range",
        )
    return value[0], value[1]


def _chat_template(block: Block) -> str | None:
    value = block.text("chat_template")
    known = ("auto", *CHAT_TEMPLATES)
    if value is not None and value not in known and "{" not in value:
        raise unknown(value, known, kind="chat template", where=block.where("chat_template"))
    return value


def _dtype(block: Block, key: str) -> str | None:
    value = block.text(key)
    if value is None:
        return None
    value = value.removeprefix("torch.")
    if value not in DTYPES:
        raise unknown(value, DTYPES, kind="dtype", where=block.where(key))
    return value
