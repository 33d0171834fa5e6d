"""What a suite needs: whether it is here, what is missing and how to get it."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

from transship.data import locate as local
from transship.errors import MissingError
from transship_suites.runner.declaration import Need

# scikit-learn brings them
EMBEDDED_DATA = {"digits"}
_ENDS = 65536
# from so many missing things on each has a line of its own
_LISTED = 5
_ORDER = {"gpu": 0, "library": 1, "model": 2, "data": 3}
# the system's files of NVIDIA's and AMD's cards: without one, torch need not be asked
_CARDS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def locate(need: Need) -> tuple[Path, ...] | None:
    """Return the local files or folders of a need, without fetching anything; None where it is not here.

    What is embedded in a library that is here has no files of its own.
    """
    if need.kind == "gpu":
        return () if has_gpu() else None
    if need.kind == "library":
        return () if importlib.util.find_spec(need.name) is not None else None
    if need.kind == "data" and need.name in EMBEDDED_DATA:
        return ()
    # a folder of our own has a hub id's name without its revision
    plain = local.hub_parts(need.name)[0] if local.is_hub_id(need.name) else need.name
    if need.kind == "data":
        here = local.data_files(plain)
    else:
        places = [Path(plain).expanduser(), *(folder / plain for folder in local.model_folders())]
        here = tuple(place for place in places if place.exists())[:1]
    return here or (_in_hub_cache(need) if local.is_hub_id(need.name) else None)


def has_gpu() -> bool:
    """Return whether torch can compute on a graphics card here."""
    if not any(Path(card).exists() for card in _CARDS):
        return False
    import torch

    return torch.cuda.is_available()


def device_for(needs: Iterable[Need], asked: str | None) -> str:
    """Return where models run: as asked, else on a GPU where one is needed, else on the processor."""
    return asked or ("cuda" if any(need.kind == "gpu" for need in needs) else "cpu")


def ensure(needs: Iterable[Need], *, suite: str, device: str | None = None) -> None:
    """Fetch what the hub has and raise one error that names all that is still missing, with how to get it.

    A `device` that was asked for stands in the place of a GPU. While something is missing that no hub has,
    nothing is fetched: models and data of a paper are many gigabytes.
    """
    absent = [
        need
        for need in {(need.kind, need.name): need for need in needs}.values()
        if not (need.kind == "gpu" and device is not None) and locate(need) is None
    ]
    fetchable = [need for need in absent if _on_hub(need)]
    lacking = absent if len(fetchable) < len(absent) else _not_fetched(fetchable)
    if not lacking:
        return
    variables = [
        f"set {variable} to the folder that has {them}"
        for kind, variable, them in (
            ("data", "TRANSSHIP_DATA", "the data"),
            ("model", "TRANSSHIP_MODELS", "the models"),
        )
        if any(need.kind == kind for need in lacking)
    ]
    count = "one thing it needs is" if len(lacking) == 1 else f"{len(lacking)} things it needs are"
    fix = ", and ".join([*variables, "get what is named in brackets"])
    if len(lacking) < _LISTED:
        named = "; ".join(f"{need.kind} '{need.name}' ({need.source})" for need in lacking)
        raise MissingError(f"{count} not here: {named}", where=suite, fix=fix)
    ordered = sorted(lacking, key=lambda need: _ORDER[need.kind])
    rows = [f"{need.kind:8}{need.name} ({need.source})" for need in ordered]
    raise MissingError(f"{count} not here", where=suite, fix=fix, listed=rows)


def _on_hub(need: Need) -> bool:
    return need.kind in ("data", "model") and local.is_hub_id(need.name)


def _not_fetched(needs: Sequence[Need]) -> list[Need]:
    """Return what the hub did not give; a hub that does not answer is asked once."""
    lacking: list[Need] = []
    for place, need in enumerate(needs):
        try:
            local.fetch(need.name, repository="dataset" if need.kind == "data" else "model")
        except MissingError as error:
            lacking.append(need)
            if "did not answer" in error.what:
                return [*lacking, *needs[place + 1 :]]
    return lacking


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

    name, revision = local.hub_parts(need.name)
    repository = "dataset" if need.kind == "data" else "model"
    try:
        return (
            Path(snapshot_download(name, repo_type=repository, revision=revision, local_files_only=True)),
        )
    except (OSError, ValueError):  # huggingface_hub's LocalEntryNotFoundError is both
        return None
