"""Where Parquet files lie: a local path, or whatever fsspec opens by its URL (`s3://…`, `gs://…`, `hf://…`).

Paths are text inside their file system. What only a local disk can do (rename a folder in one step, link a
file instead of copying it) is done there and only there.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from transship.atomic import atomic_file, atomic_folder, check_target, write_text
from transship.errors import DataError, MissingError, OutputError
from transship.verbs.translate.stores.protocol import exists_already

# stands in a folder on a remote store while its files arrive one by one
INCOMPLETE = "_incomplete"


@dataclass(frozen=True)
class Files:
    """A file system; it travels to other processes.

    Attributes:
        system: fsspec's, or None for local paths.
    """

    system: Any = None

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        return os.path.exists(path) if self.system is None else bool(self.system.exists(path))

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path) if self.system is None else bool(self.system.isfile(path))

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path) if self.system is None else bool(self.system.isdir(path))

    def below(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, relative to it, sorted by their parts."""
        if self.system is None:
            files = [file.relative_to(folder) for file in Path(folder).rglob("*") if file.is_file()]
            return [file.as_posix() for file in sorted(files)]
        self.system.invalidate_cache(folder)
        root = folder.rstrip("/") + "/"
        names = [name[len(root) :] for name in self.system.find(folder) if name.startswith(root)]
        return sorted(names, key=lambda name: PurePosixPath(name).parts)

    def starting(self, path: str) -> list[str]:
        """Return the paths of the files whose path starts so."""
        if self.system is None:
            return glob.glob(f"{glob.escape(path)}*")
        self.system.invalidate_cache(self.parent(path))
        return list(self.system.glob(f"{path}*"))

    def token(self, path: str) -> str:
        """Return what changes when the file may have changed."""
        if self.system is None:
            status = os.stat(path)
            return f"{status.st_size} {status.st_mtime_ns}"
        self.system.invalidate_cache(self.parent(path))
        # the bytes' own tag where the store keeps one; otherwise all that it says of the file
        info = self.system.info(path)
        tag = info.get("ETag") or info.get("etag") or info.get("md5Hash") or self.system.ukey(path)
        return f"{info.get('size')} {hashlib.sha256(str(tag).encode()).hexdigest()[:16]}"

    def read(self, path: str) -> str:
        """Return a small file's text."""
        if self.system is None:
            return Path(path).read_text(encoding="utf-8")
        return str(self.system.cat_file(path).decode("utf-8"))

    def write(self, path: str, text: str) -> None:
        """Write a small file, whole or not at all."""
        if self.system is None:
            write_text(path, text, force=True)
        else:
            self.system.pipe_file(f"{path}.draft", text.encode("utf-8"))
            self.rename(f"{path}.draft", path)

    def make(self, folder: str) -> None:
        if self.system is None:
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                what = f"its folder cannot be made ({error.strerror})"
                raise OutputError(what, where=folder, fix="choose another place") from error
        else:
            self.system.makedirs(folder, exist_ok=True)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that it holds; what is not there is no error."""
        if self.system is not None:
            if self.system.exists(path):
                self.system.rm(path, recursive=True)
        elif os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.exists(path):
            os.unlink(path)

    def rename(self, path: str, goal: str) -> None:
        """Give a finished file its name; a local one is on the disk by then."""
        if self.system is not None:
            self.system.mv(path, goal)
            self.system.invalidate_cache(self.parent(goal))
            return
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        os.replace(path, goal)

    def check(
        self, target: str, where: str, source: str, *, force: bool, kind: Literal["file", "folder"]
    ) -> None:
        """Refuse a target that may not be written."""
        if self.system is None:
            check_target(target, force=force, kind=kind, reads={"IN": source})
        elif self.system.exists(target) and not force:
            raise exists_already(where)

    def put_in_place(self, ready: str, target: str, *, force: bool) -> None:
        """Let a finished file or folder take the place of what is there; a local one in one step."""
        if self.system is not None:
            self.remove(target)
            self.rename(ready, target)
        elif os.path.isfile(ready):
            with atomic_file(target, force=force) as draft:
                os.replace(ready, draft)
        else:
            with atomic_folder(target, force=force) as draft:
                draft.rmdir()
                os.replace(ready, draft)

    def copy(self, path: str, goal: str) -> None:
        """Let a finished file appear under a second name, by a link where there are links."""
        if self.system is None:
            os.link(path, goal)
        else:
            self.system.cp_file(path, goal)

    def read_parquet(self, path: str) -> pq.ParquetFile:
        """Open a Parquet file for reading part by part, with little memory."""
        return pq.ParquetFile(path, filesystem=self.system, buffer_size=1 << 20, pre_buffer=False)

    def write_parquet(self, path: str, schema: pa.Schema) -> pq.ParquetWriter:
        """Open a Parquet file for writing; lists are stored as they are: floats neither shrink nor repeat."""
        flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
        return pq.ParquetWriter(
            path,
            schema,
            filesystem=self.system,
            compression=dict.fromkeys(flat, "zstd"),
            use_dictionary=flat,
            write_statistics=flat,
        )

    @staticmethod
    def parent(path: str) -> str:
        """Return the folder that a file or folder lies in."""
        return str(PurePosixPath(path).parent)

    @staticmethod
    def beside(path: str, name: str) -> str:
        """Return the path of `name` in the same folder."""
        return str(PurePosixPath(path).with_name(name))


def locate(location: str) -> tuple[Files, str]:
    """Return the file system and the path in it that a location names."""
    if "://" not in location:
        return Files(), str(Path(location))
    import fsspec  # start-up: local stores do without it

    try:
        system, path = fsspec.url_to_fs(location)
    except ImportError as error:
        raise MissingError(
            f"its file system cannot be opened ({error})", where=location, fix="install what it names"
        ) from error
    except ValueError as error:
        raise DataError(str(error), where=location, fix="use a protocol that fsspec knows") from error
    return Files(system), str(path).rstrip("/")


def plain(location: str) -> str:
    """Return a `file://` URL as the path that it stands for, and `~` as the home folder."""
    for start in ("file://", "local://"):
        if location.startswith(start):
            return location[len(start) :]
    return os.path.expanduser(location)
