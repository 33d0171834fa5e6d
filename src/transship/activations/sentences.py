"""What the files of a sentence encoder say: its pooling, trained modules, unit length and prompts."""

from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules import activation as activations

from transship.checkpoints.claims import inside
from transship.errors import DataError, OptionError
from transship.outside import complete, read_json

Pooling = Literal["mean", "cls", "last", "max", "none"]
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last", "max", "none")


def sentence_encoder_settings(folder: Path | None) -> tuple[Pooling | None, bool]:
    """Return (pooling, normalise) from the files of a sentence encoder; (None, False) without any."""
    if folder is None or not (folder / "modules.json").is_file():
        return None, False
    modules = read_json(folder / "modules.json", shape=list)
    if not all(isinstance(module, dict) for module in modules):
        raise DataError("it lists no modules", where=str(folder / "modules.json"), fix="fetch it again")
    normalise = any(str(module.get("type", "")).endswith(".Normalize") for module in modules)
    for module in modules:
        if not str(module.get("type", "")).endswith(".Pooling"):
            continue
        file = folder / str(module.get("path", "")) / "config.json"
        settings = read_json(file) if file.is_file() else {}
        names: dict[str, Pooling] = {
            "pooling_mode_cls_token": "cls",
            "pooling_mode_mean_tokens": "mean",
            "pooling_mode_max_tokens": "max",
            "pooling_mode_lasttoken": "last",
        }
        asked = [short for name, short in names.items() if settings.get(name)]
        if len(asked) == 1:
            return asked[0], normalise
        if asked or any(
            value is True and name.startswith("pooling_mode") for name, value in settings.items()
        ):
            raise OptionError(
                "the model joins several poolings",
                where=str(file),
                fix=f"choose one of {', '.join(POOLINGS)}",
            )
    return None, normalise


def sentence_layers(folder: Path | None) -> nn.Sequential:
    """Return the trained modules of a sentence encoder that come after its pooling: `Dense` and `LayerNorm`.

    A module of another kind with weights is refused: leaving it out would give other vectors in silence.
    """
    layers = nn.Sequential()
    if folder is None or not (folder / "modules.json").is_file():
        return layers
    for module in read_json(folder / "modules.json", shape=list):
        kind, place = str(module.get("type", "")).rpartition(".")[2], folder / str(module.get("path", ""))
        if kind in ("Transformer", "Pooling", "Normalize", "Dropout"):
            continue
        file, settings = place / "model.safetensors", place / "config.json"
        known = kind in ("Dense", "LayerNorm") and file.is_file() and settings.is_file()
        options = read_json(settings) if known else {}
        plain = options.get("module_input_name", "sentence_embedding") == "sentence_embedding"
        if not known or not plain or options.get("use_residual"):
            raise OptionError(
                f"the sentence encoder has a module {kind}, which is not run here",
                where=str(place),
                fix="embed with sentence-transformers and give the vectors, or pass a pooling",
            )
        with complete(inside(file, folder)):
            layers.append(_sentence_layer(kind, load_file(file), options))
    return layers.eval()


def _sentence_layer(kind: str, weights: dict[str, Tensor], settings: dict[str, Any]) -> nn.Module:
    """Return a module from its file: `linear.weight` of a Dense, `norm.weight` of a LayerNorm."""
    layer: nn.Module
    if kind == "LayerNorm":
        layer = nn.LayerNorm(len(weights["norm.weight"]))
    else:
        out_width, in_width = weights["linear.weight"].shape
        layer = nn.Linear(in_width, out_width, bias="linear.bias" in weights)
    layer.load_state_dict({name.rpartition(".")[2]: value.float() for name, value in weights.items()})
    name = str(settings.get("activation_function", "torch.nn.modules.linear.Identity")).rpartition(".")[2]
    if kind == "LayerNorm" or name == "Identity":
        return nn.Sequential(layer, nn.Identity())
    if name not in activations.__all__:
        raise OptionError(f"there is no activation '{name}'", where="Dense", fix="choose one of torch.nn")
    return nn.Sequential(layer, getattr(activations, name)())


# what sentence encoders call the two sides of a search, the plain word first
PROMPTS = {"query": ("query", "queries"), "document": ("document", "passage", "corpus", "documents")}


def sentence_prompt(folder: Path | None, name: str | None = None) -> str:
    """Return the words that a sentence encoder wants before a text, by `config_sentence_transformers.json`.

    Args:
        folder: the model's; without one, or without such a file, there are no prompts.
        name: `query`, `document`, or a prompt of the model's own; by default the model's default prompt, else
            that of a document.

    A query or document of a model without such a prompt is read as it is.
    """
    file = folder / "config_sentence_transformers.json" if folder is not None else None
    read = read_json(file) if file is not None and file.is_file() else {}
    prompts = read.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise OptionError("the prompts are no table of texts", where=str(file), fix="correct the file")
    if name is None:
        name = read.get("default_prompt_name") or "document"
    if name in prompts:
        return str(prompts[name])
    if name not in PROMPTS:
        known = ", ".join(dict.fromkeys([*PROMPTS, *prompts]))
        raise OptionError(f"the model has no prompt '{name}'", where="--as", fix=f"give one of: {known}")
    return next((str(prompts[other]) for other in PROMPTS[name] if other in prompts), "")
