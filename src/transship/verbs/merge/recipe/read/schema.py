"""A recipe as data, and its reader: every key that has a meaning; an error with its line for any other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from transship.errors import OptionError
from transship.registry import method_class, unknown
from transship.verbs.merge.protocol import RecipeMethod, parameters_of, recipe_method, recipe_methods
from transship.verbs.merge.recipe.plan.tokenizers import CHAT_TEMPLATES
from transship.verbs.merge.recipe.read.document import Block, Items, parse_documents, read_documents
from transship.verbs.merge.recipe.read.inputs import DataRule, WeightSearch, read_data, read_search
from transship.verbs.merge.recipe.read.parameters import Setting, read_settings
from transship.verbs.merge.recipe.read.reference import ModelReference, read_reference
from transship.verbs.merge.recipe.read.tokens import TokenizerRule, read_tokenizer
from transship.verbs.merge.recipe.read.values import coerce

DTYPES = ("bfloat16", "float16", "float32", "float64")
EXTRA_TENSORS = ("base", "keep", "drop", "error")
HEADS = ("auto", "merge", "per_task", "carried", "carried_polished", "tuned")
COMPATIBILITY = ("error", "warn", "off")
ARITHMETIC = ("float32", "mergekit")
SHARES = ("density", "gamma", "select_topk")


@dataclass(frozen=True)
class Source:
    """One model of a slice: its layers [first, last), or None for all, its own parameters and its data."""

    model: ModelReference
    layers: tuple[int, int] | None
    parameters: dict[str, Setting]
    where: str
    data: DataRule | None = None


@dataclass(frozen=True)
class Slice:
    """Layers of the output, made of as many layers of each source."""

    sources: tuple[Source, ...]
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
        lora_rank: the rank of a merged adapter; None to keep the sum of the ranks, which is exact.
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
    compatibility: str = "error"
    data: DataRule | None = None
    weights: WeightSearch | None = None
    name: str | None = None
    path: str = "recipe"
    text: str = ""

    def references(self) -> tuple[ModelReference, ...]:
        """Return the models in the order in which the recipe lists them, base last unless it is listed."""
        listed = [
            source.model for module in self.modules for part in module.slices for source in part.sources
        ]
        bases = [part.base_model for module in self.modules for part in module.slices if part.base_model]
        tokens = self.tokenizer.models() if self.tokenizer else ()
        every = [*listed, *bases, *([self.base_model] if self.base_model else []), *tokens]
        return tuple(dict.fromkeys(every))

    def data_of(self, reference: ModelReference) -> DataRule | None:
        """Return the data of one model, with the recipe's defaults; None where it has none."""
        for module in self.modules:
            for part in module.slices:
                for source in part.sources:
                    if source.model == reference and source.data is not None:
                        return source.data.over(self.data)
        return None

    @property
    def fits_heads(self) -> bool:
        """Return whether heads are fitted to the merged model, on data."""
        return self.heads in ("carried", "carried_polished", "tuned")

    @property
    def donor(self) -> ModelReference:
        """Return the model that gives config and tokenizer: the base, or else the first listed."""
        return self.base_model or self.references()[0]


KEYS = (
    "merge_method",
    "models",
    "slices",
    "modules",
    "base_model",
    "dtype",
    "out_dtype",
    "tokenizer_source",
    "tokenizer",
    "chat_template",
    "parameters",
    "name",
    "arithmetic",
    "seed",
    "extra_tensors",
    "heads",
    "lora_rank",
    "compatibility",
    "data",
    "weights",
)


def read_recipes(path: str | Path) -> list[Recipe]:
    """Return the recipes of a file: one, or several divided by `---`, the later ones using the earlier."""
    documents = read_documents(path)
    return _recipes(documents, Path(path).read_text(encoding="utf-8"))


def parse_recipes(text: str, path: str = "recipe") -> list[Recipe]:
    """Return the recipes of a text."""
    return _recipes(parse_documents(text, path), text)


def _recipes(documents: list[Block], text: str) -> list[Recipe]:
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
        arithmetic=_choice(block, "arithmetic", ARITHMETIC),
        seed=_integer(block, "seed") or 0,
        extra_tensors=_choice(block, "extra_tensors", EXTRA_TENSORS),
        heads=_choice(block, "heads", HEADS).replace("-", "_"),
        lora_rank=_integer(block, "lora_rank", least=1),
        compatibility=_choice(block, "compatibility", COMPATIBILITY),
        data=read_data(block, path=False),
        weights=read_search(block),
        name=_text(block, "name"),
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
    kind = cast(type[RecipeMethod], method_class("merge", recipe.method.replace("_", "-")))
    known = [kind.spelling.get(name, name) for name in parameters_of(kind, "recipe")]
    scopes = [recipe.parameters]
    for module in recipe.modules:
        scopes.append(module.parameters)
        for part in module.slices:
            scopes.append(part.parameters)
            scopes += [source.parameters for source in part.sources]
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
    found = []
    for name in modules:
        part = modules[name]
        if not isinstance(part, Block):
            raise modules.error(f"the module '{name}' is no mapping", "give it models: or slices:", key=name)
        part.expect(("models", "slices", "parameters"), f"the module '{name}'")
        if (part.get("models") is None) == (part.get("slices") is None):
            raise part.error(f"the module '{name}' needs models or slices", "give exactly one of them")
        found.append(_module(name, part, read_settings(part)))
    return tuple(found)


def _module(name: str | None, block: Block, parameters: dict[str, Setting]) -> Module:
    if block.get("models") is not None:
        sources = tuple(_source(item, False) for item in _blocks(block, "models"))
        return Module(name, (Slice(sources, None, {}, block.where("models")),), parameters, True)
    slices = tuple(_slice(item) for item in _blocks(block, "slices"))
    return Module(name, slices, parameters, False)


def _slice(block: Block) -> Slice:
    block.expect(("sources", "base_model", "parameters", "residual_weight"), "a slice")
    sources = tuple(_source(item, True) for item in _blocks(block, "sources"))
    base = read_reference(block, "base_model") if block.get("base_model") is not None else None
    lengths = {source.layers[1] - source.layers[0] for source in sources if source.layers}
    if len(lengths) > 1:
        raise block.error(
            f"the sources of a slice have {', '.join(map(str, sorted(lengths)))} layers",
            "give all of them equally many",
        )
    return Slice(sources, base, read_settings(block), block.where())


def _source(block: Block, ranged: bool) -> Source:
    block.expect(("model", "parameters", "layer_range" if ranged else "data"), "a model entry")
    if block.get("model") is None:
        raise block.error("the entry names no model", "add model: path")
    layers = None
    if ranged:
        layers = _layer_range(block)
    data = None if ranged else read_data(block)
    return Source(read_reference(block, "model"), layers, read_settings(block), block.where(), data)


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


def _blocks(block: Block, key: str) -> list[Block]:
    value = block.get(key)
    if not isinstance(value, Items) or not value:
        raise block.error(f"{key} takes a list", f"write {key}: with one '- ' entry for each", key=key)
    for item, line in zip(value, value.lines, strict=True):
        if not isinstance(item, Block):
            raise Block(block.path, line).error(f"an entry of {key} is a mapping", "write '- model: path'")
    return list(value)


def _text(block: Block, key: str) -> str | None:
    value = block.get(key)
    if value is not None and not isinstance(value, str):
        raise block.error(f"{key} takes a text", "write it in quotes", key=key)
    return value


def _chat_template(block: Block) -> str | None:
    value = _text(block, "chat_template")
    known = ("auto", *CHAT_TEMPLATES)
    if value is not None and value not in known and "{" not in value:
        raise unknown(value, known, kind="chat template", where=block.where("chat_template"))
    return value


def _integer(block: Block, key: str, least: int = 0) -> int | None:
    value = block.get(key)
    if value is not None and (type(value) is not int or value < least):
        raise block.error(f"{key} takes a whole number from {least}", f"write {key}: 16", key=key)
    return value


def _choice(block: Block, key: str, choices: tuple[str, ...]) -> str:
    value: Any = block.get(key, choices[0])
    value = "off" if value is False else value  # YAML reads a bare off as false
    if str(value).replace("-", "_") not in choices:
        raise unknown(str(value), choices, kind=key, where=block.where(key))
    return str(value)


def _dtype(block: Block, key: str) -> str | None:
    value = _text(block, key)
    if value is None:
        return None
    value = value.removeprefix("torch.")
    if value not in DTYPES:
        raise unknown(value, DTYPES, kind="dtype", where=block.where(key))
    return value
