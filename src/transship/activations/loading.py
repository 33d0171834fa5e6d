"""From a folder or hub id to a module with every weight in place, and its tokenizer or image processor."""

import atexit
import contextlib
import importlib
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.checkpoints import Adapter, Checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.checkpoints.claims import check_code
from transship.errors import CheckpointError, DataError, MissingError, OptionError, TransshipError
from transship.outside import read_json

_LOG = logging.getLogger(__name__)
# how the classes of one tower of a model are called
_TOWERS = ("EncoderModel", "Encoder", "Decoder", "TextModel", "VisionModel", "AudioModel")
MOST_TOKENS = 512  # where neither the tokenizer nor the model says how long an input may be


def image_size(config: Any) -> tuple[int, int] | None:
    """Return (height, width) of the images that a config names."""
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None)
    if isinstance(size, int):
        return size, size
    return tuple(size) if isinstance(size, list | tuple) and len(size) == 2 else None


def with_channels(image: Any, channels: int) -> Any:
    """Return a PIL image with the model's channels, or the array as it is."""
    if hasattr(image, "convert"):
        return image.convert("L" if channels == 1 else "RGB")
    array = np.asarray(image)
    return np.repeat(array[..., None], channels, -1) if array.ndim == 2 else array


def plain_pixels(image: Any, channels: int, size: tuple[int, int]) -> Tensor:
    """Return [channels, height, width] in 0…1 for models without a processor: resized, not normalised."""
    from PIL import Image

    if not hasattr(image, "convert"):
        array = np.asarray(image)
        if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[-1] not in (1, 3):
            array = array.transpose(1, 2, 0)
        if array.dtype.kind == "f":
            array = (array * 255).round().clip(0, 255)
        image = Image.fromarray(array.astype(np.uint8).squeeze())
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy(pixels.reshape(*size, channels)).permute(2, 0, 1).contiguous()


def stack_arrays(inputs: Sequence[Any]) -> Tensor:
    """Return arrays of one shape as a batch."""
    rows = [torch.as_tensor(np.asarray(item)) for item in inputs]
    if len({tuple(row.shape) for row in rows}) > 1:
        raise DataError(
            "inputs of different shapes", where="batch", fix="pad them, or give a preprocess function"
        )
    stacked = torch.stack(rows)
    return stacked.float() if stacked.dtype == torch.float64 else stacked


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """What a folder gave."""

    model: nn.Module
    config: Any
    tokenizer: Any
    image_processor: Any
    folder: Path | None
    unused: tuple[str, ...]
    max_length: int
    device: torch.device | None = None


def open_model(
    reference: Any, name: str, *, dtype: Any, head: bool, trust_remote_code: bool, device_map: Any = None
) -> OpenedModel:
    """Build the module that a folder, hub id or open checkpoint describes; see `load_model`."""
    import transformers

    checkpoint = _checkpoint(reference, name, trust_remote_code)
    path = str(checkpoint.folder)
    _LOG.info("model %s: runs from %s", name, path)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    with quiet(), sentences(name):
        check_code(checkpoint.config, name, trusted=trust_remote_code)
        config = transformers.AutoConfig.from_pretrained(path, **options)
    kind = model_class(config, head, name)
    placed = {} if device_map is None else _placement(device_map)
    placed[
        "use_safetensors"
    ] = not checkpoint.pickled  # pickles are opened where the checkpoint is: with leave
    model, unused = _load_weights(kind, path, config, name, _dtype(dtype), head, options | placed)
    tokenizer, processor = preprocessors(path, options)
    most = _max_length(config, tokenizer, Path(path))
    device = None if device_map is None else _entrance(model)
    return OpenedModel(model, config, tokenizer, processor, Path(path), unused, most, device)


def _checkpoint(reference: Any, name: str, trust_remote_code: bool) -> Checkpoint:
    """Return the weights of a reference at rest: what may not be opened there may not run either."""
    opened: Checkpoint
    if isinstance(reference, Checkpoint):
        opened = reference
    elif (path := Path(reference).expanduser()).is_file():
        raise CheckpointError(
            "one weight file has no config to build a model from", where=name, fix="give the model's folder"
        )
    elif path.is_dir() and not (path / "config.json").is_file():
        raise CheckpointError(
            "the folder has no config.json", where=name, fix="give a Hugging Face model folder"
        )
    else:
        opened = open_checkpoint(reference, trust_remote_code=trust_remote_code)
    if not opened.config or isinstance(opened, Adapter):
        raise CheckpointError(
            "there is no config.json to build a model from",
            where=name,
            fix="give a Hugging Face model folder",
        )
    return opened


def _placement(device_map: Any) -> dict[str, Any]:
    """Return what `from_pretrained` takes for a device map: a word, a device, JSON, or a mapping."""
    given = device_map
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise OptionError(
                f"it is no JSON ({error})", where="--device-map", fix='write it as {"module": "device", …}'
            ) from error
    # weights that rest on disk are read from the model's own safetensors; only other files are written anew
    folder = tempfile.mkdtemp(prefix="transship-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"device_map": given, "offload_folder": folder}


def _entrance(model: nn.Module) -> torch.device:
    """Return where inputs go: the first device that computes."""
    spread: Mapping[str, Any] = getattr(model, "hf_device_map", None) or {}
    computing = [device for device in spread.values() if device not in ("cpu", "disk")]
    if spread:
        return torch.device(computing[0] if computing else "cpu")
    return next(model.parameters()).device


def model_class(config: Any, head: bool, name: str) -> Any:
    """Return the class to build: the bare model, or with `head` the architecture that the config names.

    A folder may hold one tower of a model, such as Whisper's encoder: then that is the bare model.
    """
    import transformers

    wanted = str((getattr(config, "architectures", None) or [None])[0])
    kind = getattr(transformers, wanted, None) or _inner_class(config, wanted)
    if kind is not None and (head or wanted.endswith(_TOWERS)):
        return kind
    if not head or getattr(config, "auto_map", None):
        return transformers.AutoModel
    raise CheckpointError(
        f"config.json names the architecture {wanted!r}, which transformers does not have",
        where=name,
        fix="load it without its head, or upgrade transformers",
    )


def _inner_class(config: Any, wanted: str) -> Any:
    """Return a class that transformers defines beside a config's own models and does not show at its top."""
    package = type(config).__module__.rpartition(".")[0]
    if not package.startswith("transformers.models.") or not wanted.isidentifier():
        return None
    try:
        module = importlib.import_module(f"{package}.modeling_{package.rpartition('.')[2]}")
    except ImportError:
        return None
    kind = getattr(module, wanted, None)
    is_model = isinstance(kind, type) and hasattr(kind, "from_pretrained")
    return kind if is_model and kind.__module__ == module.__name__ else None


def has_head(config: Mapping[str, Any]) -> bool:
    """Return whether the config's architecture is a headed one, `BertForSequenceClassification` and not
    `BertModel`.
    """
    name = str((config.get("architectures") or ["Model"])[0])
    return not name.endswith(("Model", "Encoder", "Decoder")) or name.endswith("LMHeadModel")


def _load_weights(
    kind: Any, path: str, config: Any, name: str, dtype: Any, head: bool, options: Mapping[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    def attempt(**more: Any) -> tuple[nn.Module, dict[str, Any]]:
        with quiet(), sentences(name):
            model, report = kind.from_pretrained(
                path, config=config, dtype=dtype, output_loading_info=True, **options, **more
            )
        return model, report

    model, report = attempt()
    missing = sorted(report["missing_keys"])
    if missing and all("pooler" in key.split(".") for key in missing):
        model, report = attempt(add_pooling_layer=False)
        missing = sorted(report["missing_keys"])
    mismatched = sorted(str(key) for key in report.get("mismatched_keys") or ())
    if missing or mismatched:
        what = f"'{(missing or mismatched)[0]}'" + _others(len(missing or mismatched))
        raise CheckpointError(
            f"the file {'lacks' if missing else 'has another shape for'} {what}",
            where=name,
            fix="load it without a head"
            if head
            else "give the complete model, with the config that belongs to it",
        )
    unexpected = tuple(sorted(report["unexpected_keys"]))
    title = type(model).__name__
    foreign = [key for key in unexpected if not _belongs_to_a_head(key, model, config, head)]
    if foreign:
        raise CheckpointError(
            f"the file holds '{foreign[0]}'{_others(len(foreign))}, for which {title} has no place",
            where=name,
            fix="check that config.json belongs to these weights",
        )
    return model, unexpected


def _belongs_to_a_head(key: str, model: nn.Module, config: Any, head: bool) -> bool:
    """Return whether a tensor without a place in the bare model is of the head that was not asked for."""
    if key.endswith(("position_ids", "masked_bias", "inv_freq", "attn.bias")):
        return True  # buffers that older files carry
    top = key.split(".")[0]
    inner = set(dict(model.named_children()))
    prefix = getattr(model, "base_model_prefix", "")
    if head or top == prefix:
        return False
    return top not in inner or top == "pooler"


def preprocessors(path: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (tokenizer, image processor), None for what the folder does not have."""
    import transformers

    has = {file.name for file in Path(path).iterdir()} if Path(path).is_dir() else None
    tokenizer = processor = None
    words = {
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "spiece.model",
        "vocab.json",
        "tokenizer.model",
    }
    with quiet():
        if has is None or has & words:
            with contextlib.suppress(Exception):  # a broken one is none: who needs it says so
                tokenizer = transformers.AutoTokenizer.from_pretrained(path, **options)
        if has is None or has & {"preprocessor_config.json", "processor_config.json"}:
            with contextlib.suppress(Exception):  # a broken one is none: who needs it says so
                images: Any = transformers.AutoImageProcessor  # untyped
                processor = images.from_pretrained(path, **options)
    if tokenizer is not None:
        tokenizer.padding_side = "right"
        if tokenizer.pad_token is None:
            # never read: the mask covers padding
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer, processor


def _max_length(config: Any, tokenizer: Any, folder: Path | None) -> int:
    """Return how many tokens an input may have: the least that tokenizer, model or sentence encoder say."""
    text = getattr(config, "text_config", None) or config
    limits = [getattr(tokenizer, "model_max_length", None)]
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    if isinstance(positions, int):
        # these families start counting positions after the padding index
        skipped = (
            2 if getattr(text, "model_type", "") in ("roberta", "mpnet", "xlm-roberta", "camembert") else 0
        )
        limits.append(positions - skipped)
    file = folder / "sentence_bert_config.json" if folder is not None else None
    if file is not None and file.is_file():
        limits.append(read_json(file).get("max_seq_length"))
    stated = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**6]
    return min(stated, default=MOST_TOKENS)


def _dtype(dtype: Any) -> Any:
    if dtype is None:
        return torch.float32
    if dtype == "auto" or isinstance(dtype, torch.dtype):
        return dtype
    named = getattr(torch, str(dtype), None)
    if not isinstance(named, torch.dtype):
        raise OptionError(
            f"'{dtype}' is no dtype", where="dtype", fix="choose float32, bfloat16, float16 or auto"
        )
    return named


def values_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter with its values; those that rest on disk are read from there, one at a time."""
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            yield name, parameter
            continue
        hook, leaf = resting(model, name)
        yield name, hook.weights_map[leaf]


def resting(model: nn.Module, name: str) -> tuple[Any, str]:
    """Return accelerate's hook that brings a parameter while its module runs, and its name there."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path)._hf_hook, leaf


def require_in_memory(model: nn.Module, where: str, what: str, *, one_device: bool = False) -> None:
    """Refuse a model of which a device map left parts on disk, for work that exchanges its weights."""
    devices = {parameter.device for parameter in model.parameters()}
    if torch.device("meta") in devices:
        raise OptionError(
            f"{what}, and a part of the model rests on disk or beside a GPU",
            where=where,
            fix="choose a device map whose devices hold all of it, or --device",
        )
    if one_device and len(devices) > 1:
        raise OptionError(
            f"{what} on one device, and the device map spreads it over {len(devices)}",
            where=where,
            fix="choose one with --device",
        )


def _others(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""


@contextlib.contextmanager
def sentences(name: str) -> Iterator[None]:
    """Turn what transformers raises for a user's mistake into one sentence."""
    try:
        yield
    except TransshipError:
        raise
    except Exception as error:  # a config can make anything fail in the class that it names
        text = " ".join(str(error).split())
        if "trust_remote_code" in text:
            raise CheckpointError(
                "the model needs code from its repository",
                where=name,
                fix="pass --trust-remote-code if you trust it",
            ) from error
        missing = isinstance(error, OSError)
        kind = MissingError if missing else CheckpointError
        raise kind(
            f"cannot be opened ({text[:200]})",
            where=name,
            fix="check the name, the network, or the folder's files",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' reports: what matters of them is raised here."""
    from transformers import utils

    logging: Any = utils.logging  # untyped
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
