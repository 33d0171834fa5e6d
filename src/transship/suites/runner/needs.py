"""What a suite needs: whether it is here, what is missing and how to get it."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from transship.errors import MissingError
from transship.suites.runner.declaration import Need

# scikit-learn brings them
EMBEDDED_DATA = {"digits"}
_ENDS = 65536


def locate(need: Need) -> tuple[Path, ...] | None:
    """Return the local files or folders of a need, without fetching anything; None where it is not here.

    What is embedded in a library that is here has no files of its own.
    """
    if need.kind == "library":
        return () if importlib.util.find_spec(need.name) is not None else None
    if need.kind == "data" and need.name in EMBEDDED_DATA:
        return ()
    from transship.data.locate import data_files, is_hub_id, model_folders

    if need.kind == "data":
        found = data_files(need.name)
    else:
        places = [Path(need.name).expanduser(), *(folder / need.name for folder in model_folders())]
        found = tuple(place for place in places if place.exists())[:1]
    return found or (_in_hub_cache(need) if is_hub_id(need.name) else None)


def ensure(needs: Iterable[Need], *, suite: str) -> None:
    """Fetch what the hub has and raise one error that names all that is still missing, with how to get it."""
    lacking = [need for need in needs if locate(need) is None and not _fetched(need)]
    if not lacking:
        return
    listed = "; ".join(f"{need.kind} '{need.name}' ({need.source})" for need in lacking)
    variables = [
        f"set {variable} to the folder that has {them}"
        for kind, variable, them in (
            ("data", "TRANSSHIP_DATA", "the data"),
            ("model", "TRANSSHIP_MODELS", "the models"),
        )
        if any(need.kind == kind for need in lacking)
    ]
    count = "one thing it needs is" if len(lacking) == 1 else f"{len(lacking)} things it needs are"
    raise MissingError(
        f"{count} not here: {listed}",
        where=suite,
        fix=", and ".join([*variables, "get what is named in brackets"]),
    )


def signature(need: Need) -> str:
    """Return a hash of names, sizes and both ends of a need's files, so that other files are noticed."""
    digest = hashlib.sha256(f"{need.kind}\x1f{need.name}".encode())
    for place in locate(need) or ():
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.is_file():
                size = file.stat().st_size
                digest.update(f"\x1e{file.relative_to(place.parent).as_posix()}\x1f{size}\x1f".encode())
                with file.open("rb") as stream:
                    digest.update(stream.read(_ENDS))
                    stream.seek(max(size - _ENDS, 0))
                    digest.update(stream.read(_ENDS))
    return digest.hexdigest()


def _in_hub_cache(need: Need) -> tuple[Path, ...] | None:
    from huggingface_hub import snapshot_download

    from transship.data.locate import hub_parts

    name, revision = hub_parts(need.name)
    repository = "dataset" if need.kind == "data" else "model"
    try:
        return (
            Path(snapshot_download(name, repo_type=repository, revision=revision, local_files_only=True)),
        )
    except (OSError, ValueError):  # huggingface_hub's LocalEntryNotFoundError is both
        return None


def _fetched(need: Need) -> bool:
    from transship.data.locate import fetch, is_hub_id

    if need.kind == "library" or not is_hub_id(need.name):
        return False
    try:
        fetch(need.name, repository="dataset" if need.kind == "data" else "model")
    except MissingError:
        return False
    return True
