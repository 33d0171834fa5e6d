"""What goes along when weights move house: config, tokenizer, processor and sentence-encoder files."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from transship.checkpoints.checkpoint import Checkpoint
from transship.checkpoints.dtypes import BY_NAME

_CARRIED = (
    "generation_config.json",
    "tokenizer*",
    "vocab*.json",
    "vocab*.txt",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "bpe.codes",
    "chat_template*",
    "*preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "LICENSE*",
    "NOTICE*",
)
_DTYPE_KEYS = ("dtype", "torch_dtype")


def carried_files(checkpoint: Checkpoint) -> dict[str, Path]:
    """Return {name in the new folder: file to copy} of all that is not weights, config or card.

    Python files go along when the config points to them (`auto_map`): they are copied, never run. The parts
    of a sentence encoder (`1_Pooling`, `2_Dense` …) are those that `modules.json` lists.
    """
    folder = checkpoint.folder
    if folder is None or not checkpoint.config:
        return {}
    patterns = (*_CARRIED, "*.py") if "auto_map" in checkpoint.config else _CARRIED
    found = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in patterns)
    }
    for part in _module_folders(folder / "modules.json"):
        for path in sorted((folder / part).glob("*")):
            if path.is_file():
                found[f"{part}/{path.name}"] = path
    return found


def _module_folders(listing: Path) -> list[str]:
    """Return the subfolders that a sentence encoder's `modules.json` names; nothing else there counts."""
    try:
        entries = json.loads(listing.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    paths = (
        [entry.get("path") for entry in entries if isinstance(entry, dict)]
        if isinstance(entries, list)
        else []
    )
    plain = [
        path for path in paths if isinstance(path, str) and path not in ("", ".", "..") and "\0" not in path
    ]
    return [path for path in plain if PurePosixPath(path).name == path]


def with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the config with its dtype, and that of its parts, set to what is written."""
    keys = [key for key in _DTYPE_KEYS if key in config]
    changed: dict[str, Any] = {}
    for key, value in config.items():
        if key in keys and (value is None or str(value).removeprefix("torch.") in BY_NAME):
            changed[key] = dtype
        elif (
            isinstance(value, dict) and key.endswith("_config") and any(part in value for part in _DTYPE_KEYS)
        ):
            changed[key] = with_dtype(value, dtype)
        else:
            changed[key] = value
    if not keys and config.get("model_type"):
        changed["torch_dtype"] = dtype  # the name that every transformers reads
    return changed
