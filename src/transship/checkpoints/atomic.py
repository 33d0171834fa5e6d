"""Old or new, never a mix: files and folders are written beside their target and renamed into place.

A new target appears by one rename that refuses to replace anything. A forced replacement is one atomic
exchange (`renameat2` with RENAME_EXCHANGE); the old folder then lies under the temporary name and is
removed. Where the file system cannot exchange, the old folder is renamed aside first; a kill between those
two renames leaves the target absent with the old folder beside it, and `recover`, which `open` and every
later write call, puts it back.

While it works, a writer holds a lock on its temporary folder. The kernel drops the lock when the process
dies, so that the next writer to the same target can tell leftovers from work in progress, and removes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from transship.errors import OutputError
from transship.numerics import format_bytes

_MARK = ".transship-"
_ASIDE = ".old"
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
        if final.is_dir():
            shutil.copymode(final, place)
        yield place
        with _one_sentence(final):
            if sync:
                _sync_tree(place)
            _put_in_place(place, final, force)
            if sync:
                _sync(final.parent)


@contextlib.contextmanager
def atomic_file(
    target: str | os.PathLike[str], *, force: bool = False, needs: int = 0, sync: bool = True
) -> Iterator[Path]:
    """Yield a path to write to, in a folder beside `target`; it becomes `target` when the body ends."""
    final = _prepare(target, force, needs)
    if final.is_dir():
        raise OutputError("it is a folder", where=str(target), fix="give the name of a file")
    with _workplace(final) as place:
        draft = place / final.name
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

    Returns the path with symbolic links followed. Nothing is created.
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
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{above} cannot be written to", where=str(target), fix="choose another place")
    free = shutil.disk_usage(above).free
    if needs and free < needs + _MARGIN:
        raise OutputError(
            f"it needs {format_bytes(needs)} and the disk has {format_bytes(free)} left",
            where=str(target),
            fix="free some space, or choose another disk",
        )
    return final


def recover(target: str | os.PathLike[str]) -> bool:
    """Put back the old folder of a replacement killed between two renames; say whether there was one."""
    final = Path(os.path.realpath(Path(target).expanduser()))
    with contextlib.suppress(OSError):
        for aside in sorted(final.parent.glob(_temporary_names(final) + _ASIDE)):
            if not os.path.lexists(final) and _is_abandoned(aside):
                aside.rename(final)
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
        if _is_abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    return final


@contextlib.contextmanager
def _workplace(final: Path) -> Iterator[Path]:
    """Yield a new, locked folder beside `final`, and remove what is left of it in the end."""
    place, lock = _make_locked(final)
    try:
        yield place
    finally:
        shutil.rmtree(
            place, ignore_errors=True
        )  # still the draft after an error; the old folder after an exchange
        os.close(lock)


def _make_locked(final: Path) -> tuple[Path, int]:
    while True:
        place = final.parent / f".{_stem(final)}{_MARK}{secrets.token_hex(6)}"
        try:
            place.mkdir()
        except OSError as error:
            raise OutputError(
                f"{final.parent} cannot be written to ({error.strerror})",
                where=str(final),
                fix="choose another place",
            ) from error
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(place, os.O_RDONLY)
            if _lock(lock) is not False and place.exists():
                return place, lock
            os.close(lock)
        # another process took it for a leftover before the lock was there: make another


def _lock(handle: int) -> bool | None:
    """Try to lock: True if locked, False if somebody else has, None where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_abandoned(place: Path) -> bool:
    """Return whether no living process holds the lock of a temporary folder."""
    try:
        handle = os.open(place, os.O_RDONLY)
    except OSError:
        return False
    try:
        return _lock(handle) is True
    finally:
        os.close(handle)


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


def _put_in_place(place: Path, final: Path, force: bool) -> None:
    if not os.path.lexists(final) or not force:
        _rename_new(place, final)
        return
    if _renameat2(place, final, _EXCHANGE):
        return
    aside = final.parent / (place.name + _ASIDE)
    lock = os.open(final, os.O_RDONLY)  # or another process would put it back between the two renames
    try:
        _lock(lock)
        final.rename(aside)
        place.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        os.close(lock)


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


def _renameat2(one: Path, other: Path, flag: int) -> bool:
    """Call renameat2; return False where the system or the file system does not know the flag."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # a C library from before 2018
        return False
    here = -100  # AT_FDCWD
    if function(here, os.fsencode(one), here, os.fsencode(other), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


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
