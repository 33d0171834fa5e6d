"""Old or new, never a mix: files and folders are written beside their target and renamed into place.

A writer works in a hidden folder `.NAME.transship-…` beside its target, which holds its draft and its lock. A
new target appears by one rename that refuses to replace anything. A forced replacement of a folder is one
atomic exchange (`renameat2` with RENAME_EXCHANGE). Where the system or the file system cannot exchange, the
old folder is renamed into the hidden folder first. A kill between those two renames leaves the target absent
and the old folder in there, and `recover`, which `open` and every later write call, puts it back.

The system drops a lock when its process dies, so that the next writer to the same target can tell leftovers
from work in progress, and removes them. What may be written over is said in `transship.targets`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship.errors import OutputError
from transship.locks import acquire, file_lock, if_abandoned, lock_of, locked, release, stem
from transship.numerics import format_bytes
from transship.targets import Kind, check_entry, check_replaceable, leave_mark, require_apart

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LOG = logging.getLogger(__name__)
_MARK = ".transship-"
# in the hidden folder, which also holds the draft under the target's name
_LOCK, _ASIDE, _READY, _REMOVED = "lock", "old", "ready", "removed.json"
_NO_REPLACE, _EXCHANGE = 1, 2
_MARGIN = 16_000_000  # bytes left free for everybody else


@contextlib.contextmanager
def atomic_folder(
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    needs: int = 0,
    sync: bool = True,
    private: bool = False,
) -> Iterator[Path]:
    """Yield an empty folder beside `target`; when the body ends without an error, it becomes `target`.

    Args:
        force: replace an existing target; otherwise it is an OutputError, before the body runs.
        needs: bytes that the body will write; refused when the disk has not as much.
        sync: flush the files to the disk before the rename, so that a power cut also leaves old or new.
        private: the folder is an entry of transship's own cache, where nobody else keeps anything.
    """
    final = _prepare(target, force, needs, "cache" if private else "folder")
    # a folder within one that is being written is covered by that one's mark
    marked = not private and not any(_MARK in part for part in final.parts)
    with _workplace(final) as place:
        draft = place / _draft_name(final)
        draft.mkdir()
        if final.is_dir():
            shutil.copymode(final, draft)
        yield draft
        with _one_sentence(final):
            if marked:
                # a disk that failed for a moment may have kept the hidden folder of a file within
                for leftover in sorted(draft.rglob(f".*{_MARK}*"), reverse=True):
                    shutil.rmtree(leftover)
                leave_mark(draft)
            if sync:
                _sync_tree(draft)
            if force and marked and final.is_dir():
                check_replaceable(final, str(target))  # somebody may have put a file there meanwhile
            _put_in_place(draft, final, force)
            if sync:
                _sync(final.parent)
    _LOG.info("wrote the folder %s", final)


@contextlib.contextmanager
def atomic_file(target: str | os.PathLike[str], *, force: bool = False, sync: bool = True) -> Iterator[Path]:
    """Yield a path to write to, in a folder beside `target`; it becomes `target` when the body ends."""
    final = _prepare(target, force, 0, "file")
    with _workplace(final) as place:
        draft = place / _draft_name(final)
        yield draft
        with _one_sentence(final):
            if sync:
                _sync(draft)
            if force:
                draft.replace(final)
            else:
                _rename_new(draft, final)
            if sync:
                _sync(final.parent)
    _LOG.debug("wrote %s", final)


@contextlib.contextmanager
def atomic_files(
    target: str | os.PathLike[str], *beside: str, force: bool = False, sync: bool = True
) -> Iterator[Path]:
    """Yield an empty folder; its files become `target` and those named `beside` it, together.

    The old files of these names go, also those that have no new one. Once the new ones are whole, a kill
    between two renames is no loss: `recover`, which readers and later writers call, carries out the rest.
    """
    final = _prepare(target, force, 0, "file")
    for name in beside:
        check_entry(final.with_name(name), str(final.with_name(name)), force=force, kind="file")
    with _workplace(final) as place:
        draft = place / "draft"
        draft.mkdir()
        yield draft
        with _one_sentence(final):
            new = {path.name for path in draft.iterdir()}
            gone = [name for name in (final.name, *beside) if name not in new]
            (place / _REMOVED).write_text(json.dumps(gone), encoding="utf-8")
            if sync:
                _sync_tree(place)
            draft.rename(place / _READY)
            _carry_on(place)
            if sync:
                _sync(final.parent)


def write_text(target: str | os.PathLike[str], text: str, *, force: bool = False, sync: bool = True) -> Path:
    """Write `text` as UTF-8, whole or not at all; an existing file needs `force`."""
    with atomic_file(target, force=force, sync=sync) as draft, _one_sentence(Path(target)):
        draft.write_text(text, encoding="utf-8", newline="\n")
    return Path(target)


def write_json(
    target: str | os.PathLike[str], value: Any, *, force: bool = False, sync: bool = True, **layout: Any
) -> Path:
    """Write `value` as indented JSON, whole or not at all; `layout` goes to `json.dumps`."""
    text = json.dumps(value, **{"indent": 2, "ensure_ascii": False, **layout})
    return write_text(target, text + "\n", force=force, sync=sync)


@contextlib.contextmanager
def _one_sentence(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"it cannot be put in place ({reason})",
            where=str(final),
            fix="check the disk, or choose another place",
        ) from error


def check_target(
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    needs: int = 0,
    kind: Kind | None = None,
    reads: Mapping[str, Any] | None = None,
) -> Path:
    """Refuse, before any work, a target that may not be written, or a disk without `needs` bytes.

    `reads` is what the command reads, by what the user calls it: no target is one of them or holds one.
    `kind` is what the target becomes; an entry of transship's own cache is always replaced. Returns the path
    with symbolic links followed. Nothing that is created stays.
    """
    final = Path(os.path.realpath(Path(target).expanduser()))
    require_apart(target, reads or {})
    check_entry(final, str(target), force=force, kind=kind)
    above = next(folder for folder in final.parents if folder.exists())
    if not _takes_files(above, stem(final)):
        raise OutputError(f"{above} cannot be written to", where=str(target), fix="choose another place")
    free = shutil.disk_usage(above).free
    if needs and free < needs + _MARGIN:
        raise OutputError(
            f"it needs {format_bytes(needs)} and the disk has {format_bytes(free)} left",
            where=str(target),
            fix="free some space, or choose another disk",
        )
    return final


def _takes_files(folder: Path, name: str) -> bool:
    """Return whether a folder can be made in another, by making one: rights do not say so everywhere.

    It is named as a draft is, so that the next writer removes what a kill leaves of it.
    """
    try:
        place = tempfile.mkdtemp(prefix=f".{name}{_MARK}", dir=folder)
    except OSError:
        return False
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(place)
    return True


def recover(target: str | os.PathLike[str]) -> bool:
    """Carry out what a killed process began to put in place; say whether there was something.

    That is the old folder of a replacement killed between two renames, which is put back, or the rest of the
    files that belong together. For a living process that is about to end its renames this waits. Whatever
    else dead processes left beside the target goes.
    """
    final = Path(os.path.realpath(Path(target).expanduser()))
    with contextlib.suppress(OSError):
        for place in sorted(final.parent.glob(_temporary_names(final))):
            together = (place / _READY).exists()
            needed = together or ((place / _ASIDE).exists() and not os.path.lexists(final))
            with if_abandoned(place / _LOCK, wait=together) as abandoned:
                if not abandoned:
                    continue
                _settle(place, final)
                shutil.rmtree(place, ignore_errors=True)
            if needed:
                return True
    return False


def remove(target: str | os.PathLike[str]) -> None:
    """Remove a file of transship's own, and the drafts of it that a killed process left."""
    final = Path(target)
    final.unlink(missing_ok=True)
    _clear(final)


def _settle(place: Path, final: Path) -> None:
    """Carry out or take back what ended between two renames, so that `place` can go."""
    _carry_on(place)
    if (place / _ASIDE).exists() and not os.path.lexists(final):
        (place / _ASIDE).rename(final)


def _carry_on(place: Path) -> None:
    """Put files that belong together in place, as far as that is not done."""
    if (place / _READY).is_dir():
        for name in json.loads((place / _REMOVED).read_text(encoding="utf-8")):
            (place.parent / name).unlink(missing_ok=True)
        for file in sorted((place / _READY).iterdir()):
            file.replace(place.parent / file.name)
        (place / _READY).rmdir()


def _prepare(target: str | os.PathLike[str], force: bool, needs: int, kind: Kind) -> Path:
    recover(target)
    final = check_target(target, force=force, needs=needs, kind=kind)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"its folder cannot be made ({error.strerror})", where=str(target), fix="choose another place"
        ) from error
    _clear(final)
    return final


def _clear(final: Path) -> None:
    """Remove the hidden folders and the lock beside a target whose processes are dead."""
    for leftover in final.parent.glob(_temporary_names(final)):
        with if_abandoned(leftover / _LOCK) as abandoned:
            if abandoned:
                shutil.rmtree(leftover, ignore_errors=True)
        if abandoned and sys.platform == "win32":
            shutil.rmtree(leftover, ignore_errors=True)  # the lock's own file, which was open until now
    if lock_of(final).exists():
        with contextlib.suppress(OutputError), locked(final):  # the holder removes the file in the end
            pass


@contextlib.contextmanager
def _workplace(final: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `final`, locked, and remove what is left of it in the end.

    An error or Ctrl-C may come between two renames. Then the folder holds what nothing else does, and it
    stays for `recover` where that cannot be put in place at once.
    """
    place, lock = _make_locked(final)
    settled = False
    try:
        yield place
    finally:
        try:
            with contextlib.suppress(OSError):
                _settle(place, final)
                settled = True
        finally:
            if sys.platform == "win32":
                release(lock)  # an open file cannot be removed there
            # it holds the draft after an error, and the old folder after an exchange
            if settled:
                shutil.rmtree(place, ignore_errors=True)
            release(lock)


def _make_locked(final: Path) -> tuple[Path, BaseFileLock]:
    while True:
        place = final.parent / f".{stem(final)}{_MARK}{secrets.token_hex(6)}"
        lock = file_lock(place / _LOCK)
        try:
            place.mkdir()
        except OSError as error:
            raise OutputError(
                f"{final.parent} cannot be written to ({error.strerror})",
                where=str(final),
                fix="choose another place",
            ) from error
        try:
            if acquire(lock) and place.exists():
                return place, lock
        except FileNotFoundError:
            continue  # another process took it for a leftover before the lock was there: make another
        lock.release(force=True)


def _draft_name(final: Path) -> str:
    """Return what a draft is called: the target's name, unless that is one of ours."""
    return final.name if final.name not in (_LOCK, _ASIDE) else "draft"


def _temporary_names(final: Path) -> str:
    """Return the glob pattern of a target's temporary folders."""
    escaped = "".join(f"[{sign}]" if sign in "*?[" else sign for sign in stem(final))
    return f".{escaped}{_MARK}*"


def _put_in_place(draft: Path, final: Path, force: bool) -> None:
    if not os.path.lexists(final) or not force:
        _rename_new(draft, final)
    elif not _renameat2(draft, final, _EXCHANGE):
        final.rename(draft.parent / _ASIDE)
        draft.rename(final)
        # from here on it is rubbish, of which a kill may leave a part: nobody must put that back
        (draft.parent / _ASIDE).rename(draft)


def _rename_new(draft: Path, final: Path) -> None:
    """Rename without replacing: another process may have made the target meanwhile."""
    try:
        if not _renameat2(draft, final, _NO_REPLACE):
            if os.path.lexists(final):
                raise FileExistsError(errno.EEXIST, "exists")
            draft.rename(final)
    except FileExistsError as error:
        raise OutputError(
            "it was made by somebody else meanwhile", where=str(final), fix="pass --force to replace it"
        ) from error


def _renameat2(draft: Path, final: Path, flag: int) -> bool:
    """Call renameat2; return False where the system or the file system does not know the flag."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # a C library from before 2018
        return False
    here = -100  # AT_FDCWD
    if function(here, os.fsencode(draft), here, os.fsencode(final), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(final))


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    windows = sys.platform == "win32"
    if windows and path.is_dir():
        return  # no folder can be opened there, and none need be
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
