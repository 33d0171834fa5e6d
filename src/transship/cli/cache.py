"""`transship cache`: what transship keeps on this machine, how much it is, and how to be rid of it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from transship import data, folders
from transship.cli.options import show
from transship.errors import OutputError
from transship.numerics import format_bytes
from transship.progress import duration
from transship.report import Column, Facts, Page, Section, Table

# kind → what lies there; all of it can be computed again
COMPUTED = {
    "adapt": "features of a backbone on its proxy",
    "transport": "statistics of transports that were stopped",
    "finish": "states of finishes that were stopped",
    "suites": "finished cases and trained models of suites",
}
# names of entries: hashes of what they were computed from
OURS = re.compile(r"[0-9a-f]{16,64}(\.json)?")
RECENT = 3600  # seconds in which a running command may have written an entry


@dataclass(frozen=True)
class CacheEntry:
    """A folder or file of the cache, with the bytes in it and the time of its last change."""

    path: Path
    size: int
    changed: float


@click.command("cache", epilog="Example: transship cache --clear adapt")
@click.option(
    "--clear",
    "kinds",
    multiple=True,
    type=click.Choice([*COMPUTED, "all"]),
    help="Remove what was computed of this kind. Data and models stay.",
)
@click.option("--force", is_flag=True, help="Also remove what the last hour wrote.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(kinds: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Show what lies in the cache and how much it is, or clear it.

    Whatever is cleared is computed again when a command needs it. The last hour's entries stay, because a
    command that runs may be using them. The folder is $TRANSSHIP_CACHE, else $XDG_CACHE_HOME/transship, else
    ~/.cache/transship.
    """
    chosen = list(COMPUTED) if "all" in kinds else list(dict.fromkeys(kinds))
    if chosen:
        show(_cleared(chosen, force), as_json=as_json)
    else:
        show(_listed(), as_json=as_json)


def _listed() -> Page:
    places = [(kind, folders.cache(kind), what) for kind, what in COMPUTED.items()]
    places += [("data", folder, "data sets, found by name") for folder in data.data_folders()]
    places += [("models", folder, "models, found by name") for folder in data.model_folders()]
    rows, facts = [], []
    for kind, folder, what in places:
        entries = list(_entries(kind, folder))
        size, last = (
            sum(entry.size for entry in entries),
            max((entry.changed for entry in entries), default=0),
        )
        age = f"{duration(time.time() - last)} ago" if entries else "–"
        rows.append([kind, len(entries), format_bytes(size), age, what, str(folder)])
        facts.append({"kind": kind, "folder": str(folder), "entries": len(entries), "bytes": size})
    columns = [Column("kind"), Column("entries"), Column("size"), Column("last change"), Column("what")]
    table = Table([*columns, Column("folder", code=True)], rows, whole=True)
    return Page("", "", [Section("", [Facts({"cache": facts}, shown=False), table])])


def _cleared(kinds: list[str], force: bool) -> Page:
    """Remove entries; return how many and how much."""
    removed: list[CacheEntry] = []
    left = 0
    for entry in [entry for kind in kinds for entry in _entries(kind, folders.cache(kind))]:
        if not force and time.time() - entry.changed < RECENT:
            left += 1
            continue
        _remove(entry.path)
        removed.append(entry)
    size = sum(entry.size for entry in removed)
    text = f"removed {len(removed)} entries, {format_bytes(size)}"
    text += f"; {left} of the last hour stay, --force removes them too" if left else ""
    facts = {"removed": len(removed), "bytes": size, "left": left}
    return Page(text, "", [Section("", [Facts(facts, shown=False)])])


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return  # another process was quicker
    except OSError as error:
        raise OutputError(
            f"it cannot be removed ({error.strerror})", where=str(path), fix="remove it by hand"
        ) from error


def _entries(kind: str, folder: Path) -> Iterator[CacheEntry]:
    """Yield the entries of a kind: what lies in its folder, and of suites what lies two folders below."""
    below = {"suites": "*/*/*"}.get(kind, "*")
    for path in sorted(folder.glob(below)):
        if kind in COMPUTED and not OURS.fullmatch(path.name):
            continue  # somebody else's, where $TRANSSHIP_CACHE names a folder that is in use
        files = [path] if path.is_symlink() or path.is_file() else [path, *path.rglob("*")]
        stats = [stat for file in files if (stat := _stat(file)) is not None]
        if stats:
            size = sum(stat.st_blocks * 512 if hasattr(stat, "st_blocks") else stat.st_size for stat in stats)
            yield CacheEntry(path, size, max(stat.st_mtime for stat in stats))


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.lstat()
    except OSError:
        return None  # gone, or not to be looked at
