"""Old or new, never a mix: files and folders are written beside their target and renamed into place.

A writer works in a hidden folder `.NAME.transship-…` beside its target, which holds its draft and its lock. A
new target appears by one rename that refuses to replace anything. A forced replacement of a folder is one
atomic exchange (`renameat2` with RENAME_EXCHANGE). Where the system or the file system cannot exchange, the
old folder is renamed into the hidden folder first. A kill between those two renames leaves the target absent
and the old folder in there, and `recover`, which `open` and every later write call, puts it back.

The system drops a lock when its process dies, so that the next writer to the same target can tell leftovers
from work in progress, and removes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transship.errors import OutputError
from transship.numerics import format_bytes

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LOG = logging.getLogger(__name__)
_MARK = ".transship-"
_LOCK, _ASIDE = "lock", "old"  # in the hidden folder, which also holds the draft under the target's name
_NO_REPLACE, _EXCHANGE = 1, 2
_MARGIN = 16_000_000  # bytes left free for everybody else


@contextlib.contextmanager
def atomic_folder(
    target: str | os.PathLike[str], *, force: bool = False, needs: int = 0, sync: bool = True
) -> Iterator[Path]:
    """Yield an empty folder beside `target`; when the body ends without an error, it becomes `target`.

    Args:
        force: replace an existing target; otherwise it is an OutputError, before the body runs.
        needs: bytes that the body will write; refused when the disk has not as much.
        sync: flush the files to the disk before the rename, so that a power cut also leaves old or new.
    """
    final = _prepare(target, force, needs)
    if final.is_file():
        raise OutputError("it is a file", where=str(target), fix="give the name of a folder")
    with _workplace(final) as place:
        draft = place / _draft_name(final)
        draft.mkdir()
        if final.is_dir():
            shutil.copymode(final, draft)
        yield draft
        with _one_sentence(final):
            if sync:
                _sync_tree(draft)
            _put_in_place(draft, final, force)
            if sync:
                _sync(final.parent)
    _LOG.info("wrote the folder %s", final)


@contextlib.contextmanager
def atomic_file(
    target: str | os.PathLike[str], *, force: bool = False, needs: int = 0, sync: bool = True
) -> Iterator[Path]:
    """Yield a path to write to, in a folder beside `target`; it becomes `target` when the body ends."""
    final = _prepare(target, force, needs)
    if final.is_dir():
        raise OutputError("it is a folder", where=str(target), fix="give the name of a file")
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
def locked(target: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold `target` while the block runs, as its only writer on this machine; a dead process holds nothing.

    Another process that holds it makes this an OutputError, or with `wait` a wait. The lock is a hidden file
    beside the target, because the target itself may be replaced meanwhile; it is removed in the end.
    """
    final = Path(os.path.realpath(Path(target).expanduser()))
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = _file_lock(final.parent / f".{_stem(final)}.transship.lock")
    if not _acquire(lock, wait=wait):
        raise OutputError(
            "another process is changing it", where=str(target), fix="wait until that process is done"
        )
    try:
        yield
    finally:
        _release(lock)


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


def check_target(target: str | os.PathLike[str], *, force: bool = False, needs: int = 0) -> Path:
    """Refuse, before any work, a target that exists (without `force`) or a disk without `needs` bytes.

    Returns the path with symbolic links followed. Nothing that is created stays.
    """
    given = Path(target).expanduser()
    final = Path(os.path.realpath(given))
    if os.path.lexists(final):
        if not force:
            raise OutputError(
                "it exists already",
                where=str(target),
                fix="pass --force to replace it, or choose another name",
            )
        if final.is_dir() and _precious(final):
            raise OutputError(
                "it holds the home folder, the working folder or a repository, and is never replaced",
                where=str(target),
                fix="choose another name",
            )
    above = next(folder for folder in final.parents if folder.exists())
    if not _takes_files(above, _stem(final)):
        raise OutputError(f"{above} cannot be written to", where=str(target), fix="choose another place")
    free = shutil.disk_usage(above).free
    if needs and free < needs + _MARGIN:
        raise OutputError(
            f"it needs {format_bytes(needs)} and the disk has {format_bytes(free)} left",
            where=str(target),
            fix="free some space, or choose another disk",
        )
    return final


def _takes_files(folder: Path, stem: str) -> bool:
    """Return whether a folder can be made in another, by making one: rights do not say so everywhere.

    It is named as a draft is, so that the next writer removes what a kill leaves of it.
    """
    try:
        place = tempfile.mkdtemp(prefix=f".{stem}{_MARK}", dir=folder)
    except OSError:
        return False
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(place)
    return True


def recover(target: str | os.PathLike[str]) -> bool:
    """Put back the old folder of a replacement killed between two renames; say whether there was one."""
    final = Path(os.path.realpath(Path(target).expanduser()))
    with contextlib.suppress(OSError):
        for place in sorted(final.parent.glob(_temporary_names(final))):
            if os.path.lexists(final) or not (place / _ASIDE).exists():
                continue
            with _if_abandoned(place) as abandoned:
                if abandoned and not os.path.lexists(final):
                    (place / _ASIDE).rename(final)
                    shutil.rmtree(place, ignore_errors=True)
                    return True
    return False


def _prepare(target: str | os.PathLike[str], force: bool, needs: int) -> Path:
    recover(target)
    final = check_target(target, force=force, needs=needs)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"its folder cannot be made ({error.strerror})", where=str(target), fix="choose another place"
        ) from error
    for leftover in final.parent.glob(_temporary_names(final)):
        with _if_abandoned(leftover) as abandoned:
            if abandoned:
                shutil.rmtree(leftover, ignore_errors=True)
    return final


@contextlib.contextmanager
def _workplace(final: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `final`, locked, and remove what is left of it in the end."""
    place, lock = _make_locked(final)
    try:
        yield place
    finally:
        if sys.platform == "win32":
            _release(lock)  # an open file cannot be removed there
        # it holds the draft after an error, and the old folder after an exchange
        shutil.rmtree(place, ignore_errors=True)
        _release(lock)


def _make_locked(final: Path) -> tuple[Path, BaseFileLock]:
    while True:
        place = final.parent / f".{_stem(final)}{_MARK}{secrets.token_hex(6)}"
        lock = _file_lock(place / _LOCK)
        try:
            place.mkdir()
        except OSError as error:
            raise OutputError(
                f"{final.parent} cannot be written to ({error.strerror})",
                where=str(final),
                fix="choose another place",
            ) from error
        try:
            if _acquire(lock) and place.exists():
                return place, lock
        except FileNotFoundError:
            continue  # another process took it for a leftover before the lock was there: make another
        lock.release(force=True)


def _file_lock(path: Path) -> BaseFileLock:
    from filelock import FileLock  # start-up: it takes as long to import as all the rest of a small command

    return FileLock(path, thread_local=False)


def _acquire(lock: BaseFileLock, *, wait: bool = False) -> bool:
    """Take the lock if nobody has it; without locks on the file system, take it for one's own."""
    from filelock import Timeout  # start-up

    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        return False
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError):
        return True
    return True


def _release(lock: BaseFileLock) -> None:
    """Remove the lock's file while it is held, so that nobody can hold a file that is gone, and let go."""
    with contextlib.suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release(force=True)


@contextlib.contextmanager
def _if_abandoned(place: Path) -> Iterator[bool]:
    """Hold the lock of a hidden folder if no living process does, and say so."""
    lock = _file_lock(place / _LOCK)
    abandoned = False
    with contextlib.suppress(OSError):
        abandoned = _acquire(lock) and lock.is_locked
    try:
        yield abandoned
    finally:
        if abandoned:
            lock.release(force=True)


def _draft_name(final: Path) -> str:
    """Return what a draft is called: the target's name, unless that is one of ours."""
    return final.name if final.name not in (_LOCK, _ASIDE) else "draft"


def _stem(final: Path) -> str:
    """Return what a target's temporary names begin with: its name, or a hash of one too long to extend."""
    encoded = os.fsencode(final.name)
    return final.name if len(encoded) <= 150 else hashlib.sha256(encoded).hexdigest()[:32]


def _temporary_names(final: Path) -> str:
    """Return the glob pattern of a target's temporary folders."""
    escaped = "".join(f"[{sign}]" if sign in "*?[" else sign for sign in _stem(final))
    return f".{escaped}{_MARK}*"


def _precious(folder: Path) -> bool:
    for place in (Path.cwd, Path.home):
        with contextlib.suppress(
            OSError, RuntimeError
        ):  # a working folder that is gone, a user without a home
            if Path(os.path.realpath(place())).is_relative_to(folder):
                return True
    return (folder / ".git").exists()


def _put_in_place(draft: Path, final: Path, force: bool) -> None:
    if not os.path.lexists(final) or not force:
        _rename_new(draft, final)
    elif not _renameat2(draft, final, _EXCHANGE):
        final.rename(draft.parent / _ASIDE)
        draft.rename(final)


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
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
