"""What `--push` does: a folder that was just written becomes one commit of a repository on the hub.

Nothing outside the folder is read, and the token is left to the hub's own client: it is in no text of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transship.errors import OptionError, OutputError
from transship.numerics import format_bytes

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_OURS = (".written-by-transship",)  # marks in a folder that mean nothing elsewhere
_THEIRS = (".gitattributes",)  # what the hub itself puts into a new repository
_TEXTS = (".json", ".md", ".yaml")


@dataclass(frozen=True)
class Push:
    """Where a folder goes.

    Attributes:
        repository: `owner/name`.
        public: whether everybody may see it.
        force: replace what is in the repository; it stays in the repository's history.
    """

    repository: str
    public: bool = False
    force: bool = False

    def plan(self) -> str:
        """Return what will be uploaded, as whom and where; refuse at once what the hub would refuse later."""
        if not _REPOSITORY.fullmatch(self.repository):
            raise OptionError(f"'{self.repository}' is no repository", where="--push", fix="give OWNER/NAME")
        import huggingface_hub  # start-up

        with self._asking():
            user, held = huggingface_hub.HfApi().whoami()["name"], self._held()
        state = "new" if held is None else "which exists"
        if held is not None and not held[0] and not self.public:
            raise self._refusal("everybody can see it", "add --public, or name another repository")
        if held is not None and held[1] and not self.force:
            raise self._refusal(f"it holds {len(held[1])} files", "add --force, or name another repository")
        seen = "public" if self.public else "private"
        host = urlsplit(huggingface_hub.constants.ENDPOINT).hostname
        return (
            f"all files of OUT go to {self.repository} on {host} as {user} ({seen}, {state}), and no others"
        )

    def files(self, folder: Path) -> dict[str, Path]:
        """Return {name in the repository: file}; a link out of the folder is refused."""
        root, files = folder.resolve(), {}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if not path.resolve().is_relative_to(root):
                raise self._refusal(f"{name} is a link out of {folder}", "put the file itself there")
            if path.is_file() and name not in _OURS:
                files[name] = path
        return files

    def send(self, folder: Path) -> Iterator[str]:
        """Upload the folder in one commit; yield lines about what goes and what arrived."""
        import huggingface_hub as hub  # start-up

        files = self.files(folder)
        size = format_bytes(sum(path.stat().st_size for path in files.values()))
        yield f"push: {len(files)} files, {size}: {', '.join(files)}"
        if telling := [name for name, path in files.items() if _names_home(path)]:
            yield f"note: {', '.join(telling)} name folders of this machine"
        with self._asking():
            held = self._held()
            others = held[1] - files.keys() if held is not None else set()
            operations: list[Any] = [hub.CommitOperationDelete(name) for name in sorted(others)]
            operations += [hub.CommitOperationAdd(name, str(path)) for name, path in files.items()]
            hub.HfApi().create_repo(self.repository, private=not self.public, exist_ok=held is not None)
            commit = hub.HfApi().create_commit(self.repository, operations, commit_message="transship")
        yield f"pushed to {self.repository}@{commit.oid}"

    def _held(self) -> tuple[bool, set[str]] | None:
        """Return whether the repository is private, and its files; None where there is none."""
        from huggingface_hub import HfApi, errors  # start-up

        try:
            info = HfApi().model_info(self.repository)
        except errors.RepositoryNotFoundError:
            return None
        return bool(info.private), {each.rfilename for each in info.siblings or ()} - {*_THEIRS}

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Make one sentence of what the hub's client raises: its own errors and those of its transport."""
        try:
            yield
        except OutputError:
            raise
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = type(error).__name__ if status is None else f"status {status}"
            fix = "run `hf auth login` with a token that may write, check the name, and try again"
            raise self._refusal(f"the hub does not take it ({reason})", fix) from None

    def _refusal(self, what: str, fix: str) -> OutputError:
        return OutputError(what, where=f"--push {self.repository}", fix=fix)


def _names_home(path: Path) -> bool:
    """Return whether a text speaks of a folder in the user's home."""
    if path.suffix not in _TEXTS or path.stat().st_size > 1 << 20:
        return False
    return f"{Path.home()}/" in path.read_text("utf-8", errors="replace")
