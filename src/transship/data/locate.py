"""Where data and models lie: the path as given, a named folder, the cache, then the hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transship import folders
from transship.data.dataset import split_name
from transship.data.fasta import FASTA
from transship.data.tables import DataTable, MemoryTable
from transship.errors import DataError, MissingError

TABLES = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt", *FASTA)
NUMBERS = (".npz", ".npy", ".pt")
SUFFIXES = (*TABLES, *NUMBERS)
_HUB_ID = re.compile(r"(?:hub:)?[\w.-]+/[\w.-]+(?:@[\w./-]+)?|hub:[\w.-]+(?:@[\w./-]+)?")
_SPLIT_PART = re.compile(r"-(train|validation|valid|val|dev|test)$")
# what a model folder needs; pickled weights, other frameworks' files and code stay on the hub
_MODEL_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


def data_folders() -> list[Path]:
    """Return the folders in which data sets are looked for by name: $TRANSSHIP_DATA, then the cache."""
    return _folders("TRANSSHIP_DATA", "data")


def model_folders() -> list[Path]:
    """Return the folders in which models are looked for by name: $TRANSSHIP_MODELS, then the cache."""
    return _folders("TRANSSHIP_MODELS", "models")


def data_files(name: str | Path) -> tuple[Path, ...]:
    """Return the local files (or the one folder) that `name` stands for; empty when there is none.

    `name` may leave out the suffix, and may stand for one file per split: `name-train.parquet`, ….
    """
    given = Path(name).expanduser()
    for candidate in [given, *(folder / name for folder in data_folders())]:
        if candidate.is_dir() or candidate.is_file():
            return (candidate,)
        whole = [file for suffix in SUFFIXES if (file := _with_suffix(candidate, suffix)).is_file()]
        if whole:
            return (whole[0],)
        for suffix in SUFFIXES:
            parts = sorted(
                file
                for file in _glob(candidate.parent, f"{candidate.name}-*{suffix}")
                if _SPLIT_PART.fullmatch(file.name[len(candidate.name) : -len(suffix)])
            )
            if parts:
                return tuple(parts)
    return ()


def find_data(name: str | Path) -> Path:
    """Return the file or folder of a data set: as given, in `data_folders()`, else fetched from the hub."""
    files = data_files(name)
    if len(files) == 1:
        return files[0]
    if files:
        raise DataError(
            f"it is kept as {len(files)} files, one per split",
            where=str(name),
            fix=f"name one of them ({', '.join(file.stem for file in files)})",
        )
    if is_hub_id(name):
        return fetch(str(name), repository="dataset")
    raise missing_data(name)


def find_model(name: str | Path) -> Path:
    """Return the folder (or file) of a model: as given, in `model_folders()`, else fetched from the hub."""
    given = Path(name).expanduser()
    for candidate in [given, *(folder / name for folder in model_folders())]:
        if candidate.is_dir() or candidate.is_file():
            return candidate
    if is_hub_id(name):
        return fetch(str(name), repository="model")
    raise missing_model(name)


def local_model(name: str) -> str:
    """Return the folder of a model that is named as in the model folders, or the reference as it is.

    A bare name that is nowhere and nearly one of those is refused with the right one.
    """
    path = Path(name).expanduser()
    if path.exists():
        return str(path)
    for folder in model_folders():
        if (folder / name).is_dir():
            return str(folder / name)
    bare = path.name == name and not is_hub_id(name)
    if bare and difflib.get_close_matches(name, _known_models(), n=1, cutoff=0.75):
        raise missing_model(name)
    return name


def is_hub_id(name: str | Path) -> bool:
    """Return whether `name` reads as `owner/name[@revision]` or `hub:name`, and not as a file."""
    text = str(name)
    return bool(_HUB_ID.fullmatch(text)) and not text.startswith(".") and Path(text).suffix not in SUFFIXES


def hub_parts(name: str) -> tuple[str, str | None]:
    """Return the repository and the revision (None for the newest) of a hub id."""
    plain, _, revision = name.removeprefix("hub:").partition("@")
    return plain, revision or None


def written_folder(name: str | Path) -> Path:
    """Return the folder of a map or fusion: as given, or all of a hub repository."""
    given = Path(name).expanduser()
    return (
        given if given.exists() or not is_hub_id(name) else fetch(str(name), repository="model", whole=True)
    )


def fetch(name: str, *, repository: str, whole: bool = False) -> Path:
    """Return the local copy of a hub repository (`model` or `dataset`), fetched if not in the cache."""
    from huggingface_hub import snapshot_download

    plain, revision = hub_parts(name)
    patterns = _MODEL_FILES if repository == "model" and not whole else None
    try:
        folder = snapshot_download(plain, repo_type=repository, revision=revision, allow_patterns=patterns)
    except Exception as error:  # the HTTP client below the hub's library changes, and with it the errors
        raise not_fetched(name, repository, error) from error
    return Path(folder)


def not_fetched(name: str, repository: str, error: Exception) -> MissingError:
    """Return the error for a hub repository that could not be had, with the reason in a few words."""
    variable = "TRANSSHIP_MODELS" if repository == "model" else "TRANSSHIP_DATA"
    reason = type(error).__name__
    if "NotFound" in reason and "Local" not in reason:
        return MissingError(
            f"the hub has no public {repository} of this name",
            where=name,
            fix="check the name, or log in to the hub",
        )
    return MissingError(
        f"it is not on this machine and the hub did not answer ({reason})",
        where=name,
        fix=f"go online, or put the {repository} into a folder and name that, or set {variable}",
    )


def _known_models() -> list[str]:
    return [entry.name for folder in model_folders() for entry in _glob(folder, "*") if entry.is_dir()]


def missing_model(name: str | Path) -> MissingError:
    """Return the error for a model that is nowhere, with the nearest name that exists."""
    form = "a folder with config.json and model.safetensors"
    return _missing("model", name, _known_models(), "TRANSSHIP_MODELS", form)


def missing_data(name: str | Path) -> MissingError:
    """Return the error for a data set that is nowhere, with the nearest name that exists."""
    known = {
        re.sub(_SPLIT_PART, "", entry.stem)
        for folder in data_folders()
        for entry in _glob(folder, "*")
        if entry.is_dir() or entry.suffix in SUFFIXES
    } | {"digits"}
    return _missing("data", name, known, "TRANSSHIP_DATA", "a parquet, jsonl, csv, txt, npy or npz file")


def _missing(what: str, name: str | Path, known: Iterable[str], variable: str, form: str) -> MissingError:
    looked = ", ".join(
        _short(folder) for folder in (data_folders() if variable == "TRANSSHIP_DATA" else model_folders())
    )
    near = difflib.get_close_matches(Path(name).name, sorted(known), n=1)
    hint = f"did you mean '{near[0]}'? Otherwise " if near else ""
    return MissingError(
        f"no {what} of this name here or in {looked}",
        where=str(name),
        fix=f"{hint}give the path of {form}, set {variable} to its folder, or name a hub id as owner/name",
    )


def _folders(variable: str, leaf: str) -> list[Path]:
    named = [Path(part).expanduser() for part in os.environ.get(variable, "").split(os.pathsep) if part]
    return [*named, folders.shared_cache() / leaf]


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.parent / (path.name + suffix)  # `Path.with_suffix` would cut the dots of `model-v1.5`


def _glob(folder: Path, pattern: str) -> list[Path]:
    """Return what matches in a folder; in `pattern` only the star is special."""
    return sorted(folder.glob(re.sub(r"([\[?])", r"[\1]", pattern))) if folder.is_dir() else []


def _short(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def hub_table(name: str, config: str | None = None) -> DataTable:
    """Return all splits of a hub data set `owner/name[@revision]` as one table with a column `split`.

    No code of the data set's repository is run: the library reads its data files.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingError(
            "the library `datasets` is not installed", where=name, fix="pip install 'transship[hub]'"
        ) from error
    plain, revision = hub_parts(name)
    try:
        with _offline_when_unreachable(plain):
            loaded = datasets.load_dataset(plain, config, revision=revision)
    except ValueError as error:
        if "onfig" in str(error):
            configs = str(error).strip().split("\n")[0][:160]
            raise DataError(
                f"it comes in several configurations ({configs})", where=name, fix="pass config="
            ) from error
        raise not_fetched(name, "dataset", error) from error
    except (OSError, RuntimeError) as error:
        raise not_fetched(name, "dataset", error) from error
    return table_of_splits(name, loaded if isinstance(loaded, Mapping) else {"train": loaded})


@contextmanager
def _offline_when_unreachable(name: str) -> Iterator[None]:
    """Ask the hub once; where nothing answers, let the libraries use their cache at once, not after 24 s."""
    import datasets
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=10)
        unreachable = False
    except (HfHubHTTPError, ValueError):
        unreachable = False  # it answered: what the answer means is the loader's to say
    except Exception:  # the HTTP client below the hub's library changes, and with it the errors
        unreachable = True
    if unreachable:
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = before


def table_of_splits(name: str, splits: Mapping[str, Any]) -> DataTable:
    """Return the splits (`datasets.Dataset` each) as one table; class names come from its features."""
    import pyarrow

    tables, words = [], []
    for split, part in splits.items():
        table = part.with_format("arrow")[:] if len(part) else part.data.table
        tables.append(table)
        words.append(pyarrow.array([split_name(split)] * len(table), pyarrow.string()))
    names = [
        column for column in tables[0].column_names if all(column in table.column_names for table in tables)
    ]
    columns: dict[str, Any] = {
        column: pyarrow.chunked_array(
            [chunk for table in tables for chunk in table.column(column).chunks],
            tables[0].schema.field(column).type,
        )
        for column in names
    }
    if "split" not in columns:
        columns["split"] = pyarrow.chunked_array(words, pyarrow.string())
    features = next(iter(splits.values())).features
    classes = {
        column: list(feature.names)
        for column, feature in features.items()
        if type(feature).__name__ == "ClassLabel"
    }
    return MemoryTable(name, columns, sum(len(table) for table in tables), classes, folder=Path())
