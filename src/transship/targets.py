"""What an output may be, and what `--force` may replace: the one rule of every command that writes.

An output is nothing yet, a regular file, or a folder. A folder is replaced only where all that it holds is
known: transship wrote it and left its mark, which lists the files, or it is a plain model folder. Whatever
else lies in it, and whatever a command reads, is named and kept. A device, a FIFO or a socket is no output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from transship.errors import OutputError

MARK = ".written-by-transship"  # in every folder that transship writes; it lists the files
_SHOWN = 3  # names in one sentence
_KINDS = {
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
# what makes a folder without a mark a model's, and what such a folder holds
_MODELS = ("config.json", "adapter_config.json", "modules.json")
_PLAIN = (
    *("*config.json", "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*"),
    *("adapter_model.bin", "*tokenizer*.json", "vocab*.json", "vocab*.txt", "merges.txt", "*.model"),
    *("special_tokens_map.json", "added_tokens.json", "bpe.codes", "chat_template.*", "modules.json"),
    *("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", ".gitattributes"),
    *("transship.json", "recipe.yaml", ".DS_Store"),
)
_PARTS = re.compile(r"\d+_[A-Z]\w*")  # folders of a sentence encoder
_FETCHED = ".cache/huggingface/"  # what the hub's client notes


Kind = Literal["file", "folder", "cache"]


def check_entry(final: Path, where: str, *, force: bool, kind: Kind | None = None) -> None:
    """Refuse what is there, if it may not be replaced.

    `kind` is what becomes of it; an entry of transship's own cache is always replaced.
    """
    _check_kind(final, where)
    if not os.path.lexists(final):
        return
    if not force:
        raise OutputError(
            "it exists already", where=where, fix="pass --force to replace it, or choose another name"
        )
    there = "folder" if final.is_dir() else "file"
    if kind not in (None, "cache", there):
        raise OutputError(f"it is a {there}", where=where, fix=f"give the name of a {kind}")
    if there == "folder" and kind != "cache":
        check_replaceable(final, where)


def _check_kind(final: Path, where: str) -> None:
    """Refuse what is there and is neither a file nor a folder."""
    with contextlib.suppress(OSError):
        kind = _KINDS.get(stat.S_IFMT(final.stat().st_mode))
        if kind is not None:
            raise OutputError(
                f"it is a {kind}, which is never written over", where=where, fix="name a file or a folder"
            )


def check_replaceable(folder: Path, where: str) -> None:
    """Refuse a folder that holds something which transship did not write and which is no model's."""
    if precious := _precious(folder):
        raise OutputError(
            f"it holds {precious}, and is never replaced", where=where, fix="choose another name"
        )
    names = _strangers(folder)
    if names:
        more = " and more" if len(names) > _SHOWN else ""
        raise OutputError(
            f"it holds {', '.join(names[:_SHOWN])}{more}, which transship did not write, and is kept",
            where=where,
            fix="move that away, or choose another name",
        )


def leave_mark(folder: Path) -> None:
    """List the files of a finished folder in it, so that it may be replaced later."""
    text = json.dumps({"format": "transship.folder", "files": sorted(_files(folder))}, indent=0)
    (folder / MARK).write_text(text + "\n", encoding="utf-8")


def require_apart(out: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse an output that is an input, holds one, or is a file of one; `--force` does not help.

    Args:
        out: the folder or file that is to be written.
        inputs: what is read, by what the user calls it; what is no local path is passed over.
    """
    final = _real(out)
    for role, given in inputs.items():
        if not isinstance(given, str | os.PathLike) or not str(given) or "\0" in str(given):
            continue
        place = _real(given)
        if not os.path.lexists(place):
            continue
        relation = None
        if final == place:
            relation = "is"
        elif final in place.parents:
            relation = "holds"
        elif place in final.parents and final.is_file():
            relation = "is a file of"
        if relation is not None:
            raise OutputError(
                f"it {relation} {role} ({given}), which is never written over",
                where=str(out),
                fix="choose another name",
            )


def _real(given: Any) -> Path:
    return Path(os.path.realpath(Path(given).expanduser()))


def _precious(folder: Path) -> str:
    """Return what a folder holds that nobody wants to lose, or nothing."""
    for name, place in (("the working folder", Path.cwd), ("the home folder", Path.home)):
        with contextlib.suppress(
            OSError, RuntimeError
        ):  # a working folder that is gone, a user without a home
            path = place()
            if Path(os.path.realpath(path)).is_relative_to(folder):
                return f"{name} ({path})"
    return "a repository (.git)" if (folder / ".git").exists() else ""


def _strangers(folder: Path) -> list[str]:
    """Return some names of what lies in a folder and is not known; nothing where all of it is."""
    listed = _listed(folder)
    plain = listed is None and any((folder / name).is_file() for name in _MODELS)
    names: list[str] = []
    for name in _files(folder):
        known = name in listed if listed is not None else plain and _of_model(name)
        if not known and name != MARK:
            names.append(name)
            if len(names) > _SHOWN:
                break
    return names


def _of_model(name: str) -> bool:
    if name.startswith(_FETCHED):
        return True
    *above, last = name.split("/")
    if len(above) > 1 or (above and _PARTS.fullmatch(above[0]) is None):
        return False
    return any(fnmatch(last, pattern) for pattern in _PLAIN)


def _listed(folder: Path) -> frozenset[str] | None:
    """Return what a folder's mark lists; None without a readable mark."""
    try:
        listed = json.loads((folder / MARK).read_text(encoding="utf-8"))["files"]
        return frozenset(map(str, listed))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(folder: Path) -> Iterator[str]:
    """Yield what lies in a folder and is no folder itself, relative to it; links are not followed."""
    for root, folders, files in os.walk(folder):
        above = Path(root)
        links = [name for name in folders if (above / name).is_symlink()]
        for name in sorted([*files, *links]):
            relative = (above / name).relative_to(folder).as_posix()
            if relative != MARK:
                yield relative
