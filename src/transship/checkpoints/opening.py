"""Opening a reference: a folder, one file, an adapter folder, or a model on the hub."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transship.atomic import recover
from transship.checkpoints.checkpoint import Checkpoint, TensorSource
from transship.checkpoints.claims import check_sizes, module_weights, refuse_links
from transship.checkpoints.dtypes import BY_NAME
from transship.checkpoints.lora import Adapter
from transship.checkpoints.weightfile import (
    PICKLE_SUFFIXES,
    TensorInfo,
    WeightFile,
    nothing_here,
    pickle_refusal,
    quote,
    refuse_format,
    refuse_quantised,
)
from transship.errors import CheckpointError, MissingError
from transship.outside import read_json

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)
_HUB_ID = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<model>\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
# one level of the repository only: `*` of the hub's patterns also matches folders
_WEIGHTS = (
    "model.safetensors",
    "model-*.safetensors",
    "adapter_model.safetensors",
    "[1-9]_*/model.safetensors",
)
_PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin", "adapter_model.bin")
_TRAINER_STATE = ("optimizer", "scheduler", "rng_state", "training_args", "scaler")
_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.md", "LICENSE*")


def open(  # the verb that users know
    reference: str | os.PathLike[str], *, allow_pickle: bool = False, trust_remote_code: bool = False
) -> Checkpoint:
    """Open weights at rest: headers are read and checked, data is not.

    Args:
        reference: a Hugging Face folder (one file or sharded), one `.safetensors` file, a PEFT LoRA adapter
            folder (gives an `Adapter`), or a hub id `owner/name` or `owner/name@revision`. What exists on
            disk comes first.
        allow_pickle: also open `.bin` and `.pt` files, weights only.
        trust_remote_code: also fetch code; kept for rooms that build models (nothing here runs it).
    """
    name = os.fspath(reference)
    if "\0" in name or not name.strip():
        raise MissingError(
            f"{quote(name)} is no path", where="open", fix="give a folder, a file or owner/name"
        )
    try:
        path = Path(name).expanduser()
        _LOG.info("weights %s: %s", name, path.absolute() if path.exists() else "no path, so of the hub")
        if not path.exists():
            recover(path)  # a replacement that was killed half-way, on a file system without exchange
        if path.exists() and not path.is_dir():
            sources: list[TensorSource] = [_open_file(path, allow_pickle)]
            refuse_quantised({}, sources[0].tensors, name)
            return Checkpoint(name, sources, folder=path.parent, trust_remote_code=trust_remote_code)
        folder = path if path.is_dir() else _from_hub(name, allow_pickle, trust_remote_code)
        return _open_folder(folder, name, allow_pickle, trust_remote_code)
    except OSError as error:
        what = f"it cannot be read ({error.strerror or type(error).__name__})"
        raise CheckpointError(what, where=name[:200], fix="check its path and permissions") from error


def _open_folder(folder: Path, name: str, allow_pickle: bool, trust_remote_code: bool) -> Checkpoint:
    refuse_links(folder)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    refuse_quantised(config, (), name)
    if (folder / "quantize_config.json").is_file():  # how GPTQ was marked before configs had a place for it
        refuse_quantised({"quantization_config": {"quant_method": "gptq"}}, (), name)
    sources = _model_files(folder, allow_pickle)
    if sources is None and (folder / "adapter_config.json").is_file():
        sources = [_open_file(_adapter_file(folder), allow_pickle)]
        settings = read_json(folder / "adapter_config.json")
        return Adapter(name, sources, folder=folder, config=settings, trust_remote_code=trust_remote_code)
    if sources is None:
        raise nothing_here(folder)
    sources += [WeightFile(file, part) for part, file in module_weights(folder).items()]
    refuse_quantised({}, (tensor for source in sources for tensor in source.tensors), name)
    check_sizes(config, (info.shape for source in sources for info in source.tensors.values()), name)
    return Checkpoint(name, sources, folder=folder, config=config, trust_remote_code=trust_remote_code)


def _open_file(path: Path, allow_pickle: bool) -> TensorSource:
    if path.suffix.lower() in PICKLE_SUFFIXES:
        if not allow_pickle:
            raise pickle_refusal(path)
        return PickleFile(path)
    if path.is_file():
        refuse_format(path)
    return WeightFile(path)


def _model_files(folder: Path, allow_pickle: bool) -> list[TensorSource] | None:
    """Return the opened weight files, or None where the folder holds no model; safetensors before pickles."""
    for stem, suffix in (("model", ".safetensors"), ("pytorch_model", ".bin")):
        single, index = folder / (stem + suffix), folder / f"{stem}{suffix}.index.json"
        if single.is_file():
            return [_open_file(single, allow_pickle)]
        if index.is_file():
            return _sharded(index, allow_pickle)
    adapters = {"adapter_model.safetensors", "adapter_model.bin"}
    others = [path for path in sorted(folder.glob("*.safetensors")) if path.name not in adapters]
    if len(others) > 1:
        names = ", ".join(path.name for path in others[:3])
        raise CheckpointError(
            f"it holds {len(others)} safetensors files ({names} …) and no index",
            where=str(folder),
            fix="give one of the files, or add model.safetensors.index.json",
        )
    if not others and not (folder / "adapter_config.json").is_file():
        others = _other_pickles(folder)
    return [_open_file(others[0], allow_pickle)] if others else None


def _other_pickles(folder: Path) -> list[Path]:
    """Return the one pickle that may hold a model, if any; a trainer's own state is none."""
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in PICKLE_SUFFIXES and not path.name.startswith(_TRAINER_STATE)
    ]
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:3])
        raise CheckpointError(
            f"it holds {len(files)} pickles ({names} …)", where=str(folder), fix="give one of the files"
        )
    return files


def _adapter_file(folder: Path) -> Path:
    adapter = folder / "adapter_model.safetensors"
    pickle = folder / "adapter_model.bin"
    return pickle if pickle.is_file() and not adapter.is_file() else adapter


def _sharded(index: Path, allow_pickle: bool) -> list[TensorSource]:
    """Open the shards that an index names and check that each holds exactly what the index says."""
    mapping = read_json(index).get("weight_map")
    if (
        not isinstance(mapping, dict)
        or not mapping
        or not all(isinstance(file, str) for file in mapping.values())
    ):
        raise CheckpointError(
            "it has no weight_map from tensors to files", where=str(index), fix="fetch it again"
        )
    expected: dict[str, set[str]] = {}
    for tensor, file in mapping.items():
        if file != Path(file).name or file in ("", ".", "..") or "\0" in file:
            raise CheckpointError(
                f"it names the file {quote(file)} outside its folder", where=str(index), fix="fetch it again"
            )
        expected.setdefault(file, set()).add(tensor)
    sources = []
    for file, tensors in sorted(expected.items()):
        source = _open_file(index.parent / file, allow_pickle)
        held = (
            source.tensors.keys() | source.metadata.keys()
            if isinstance(source, PickleFile)
            else source.tensors.keys()
        )
        _compare(tensors, set(held), index, file)
        sources.append(source)
    return sources


def _compare(promised: set[str], held: set[str], index: Path, file: str) -> None:
    for tensors, what in (
        (promised - held, "is not in"),
        (held - promised, "is missing from the index but in"),
    ):
        if tensors:
            raise CheckpointError(
                f"tensor {quote(min(tensors))} {what} {file} ({len(tensors)} such)",
                where=str(index),
                fix="fetch the folder again: index and shards are of different models",
            )


def _from_hub(name: str, allow_pickle: bool, trust_remote_code: bool) -> Path:
    """Fetch a model's files (or find them in the hub's local cache) and return the folder."""
    match = _HUB_ID.fullmatch(name)
    if match is None:
        raise MissingError(
            "there is no such file or folder",
            where=name,
            fix="check the path, or give a hub id like owner/name",
        )
    import huggingface_hub
    from huggingface_hub import errors

    patterns = [*_FILES, *_WEIGHTS, *(_PICKLES if allow_pickle else ()), *(["*.py"] * trust_remote_code)]
    try:
        folder = huggingface_hub.snapshot_download(
            f"{match['owner']}/{match['model']}",
            revision=match["revision"],
            allow_patterns=patterns,
            ignore_patterns=["*.fp16.*", "*.fp32.*", "onnx/*", "openvino/*"],
        )
    except errors.RevisionNotFoundError as error:
        raise MissingError(
            "the hub has no such revision", where=name, fix="check what follows the @"
        ) from error
    except errors.GatedRepoError as error:
        raise MissingError(
            "its owner asks for consent first",
            where=name,
            fix="accept the terms on the hub and run `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise MissingError(
            "there is no such folder, and the hub has no such model",
            where=name,
            fix="check the name, or log in",
        ) from error
    except (OSError, ValueError, errors.HfHubHTTPError) as error:  # no network, offline mode, a name refused
        raise MissingError(
            f"there is no such folder, and the hub cannot be asked ({type(error).__name__})",
            where=name,
            fix="check the name, go online, or give a local folder",
        ) from error
    return Path(folder)


class PickleFile:
    """A `torch.save` file with a table of tensors; it looks like a `WeightFile`.

    Attributes:
        tensors: every tensor by name.
        metadata: alias → kept name, for tensors that share one piece of memory in the file.
    """

    pickled: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, torch.Tensor] = {}
        self.metadata: dict[str, str] = {}
        kept: dict[tuple[Any, ...], str] = {}
        for name, tensor in _load(path).items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if not _is_whole(tensor):
                raise CheckpointError(
                    f"tensor {quote(name)} is sparse, or expanded from fewer numbers than it claims",
                    where=str(path),
                    fix="save it dense and contiguous",
                )
            if dtype not in BY_NAME:
                raise CheckpointError(
                    f"tensor {name!r} has the type {dtype}",
                    where=str(path),
                    fix="use weights that are not quantised",
                )
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), dtype)
            if tensor.numel() and place in kept:
                self.metadata[name] = kept[place]
            else:
                kept[place] = name
                self._values[name] = tensor
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(
                name, tuple(tensor.shape), str(tensor.dtype)[6:], tensor.numel() * tensor.element_size()
            )
            for name, tensor in self._values.items()
        }

    def raw(self, name: str) -> memoryview:
        """Return the bytes of one tensor, in row-major order."""
        import torch

        flat = self._values[name].contiguous().reshape(-1)
        array: Any = flat.view(torch.uint8).numpy()
        return memoryview(array).toreadonly()

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor, to be treated as read-only."""
        return self._values[name]

    def close(self) -> None:
        self._values = {}


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether the file holds every element: a sparse or expanded tensor may claim any number."""
    import torch

    if tensor.layout != torch.strided or tensor.is_meta:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _load(path: Path) -> dict[str, torch.Tensor]:
    """Return the file's table of tensors; one level of wrapping (`state_dict`, `model`) is looked through."""
    import zipfile

    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises whatever its unpickler meets in a broken or hostile file
        reason = str(error).strip().split("\n")[0][:160] or type(error).__name__
        raise CheckpointError(
            f"it cannot be loaded weights-only ({reason})",
            where=str(path),
            fix="save the model as safetensors",
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if (
        not isinstance(content, dict)
        or not content
        or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) and not tensor.is_quantized
            for name, tensor in content.items()
        )
    ):
        raise CheckpointError(
            "it holds no plain table of tensors", where=str(path), fix="save model.state_dict()"
        )
    return {name: tensor.detach() for name, tensor in content.items()}
