"""The commands that write, each with small inputs and what it replaces; `inputs` is made once."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

SHORT = ["--tokens", "6", "--device", "cpu", "--method", "nft", "--no-baseline", "--base", "none"]
PINS = Path(__file__).resolve().parents[1] / "pins"


@dataclass(frozen=True)
class Family:
    """A command that writes.

    Attributes:
        command: its words, or a function that does the same in Python; it runs in a folder of its own.
        before: what made the old output; empty where there is none.
        begun: makes what the command needs beside its inputs.
        once: running it again on its own output is refused, and that is right.
        grows: the output holds a growing part of the new rows after a fault, not all or none.
        clears: the old rows go before the new ones come, so that a fault leaves some of either; a store in
            use has no reader.
    """

    command: list[str] | Callable[[Path], None]
    before: list[str] | None = None
    begun: tuple[list[str], ...] = ()
    once: bool = False
    grows: bool = False
    clears: bool = False


def pins(verb: str) -> ModuleType:
    """Return the module that makes a verb's small inputs."""
    spec = importlib.util.spec_from_file_location(f"{verb}_jobs", PINS / f"{verb}_jobs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_inputs(inputs: Path, verbs: set[str]) -> None:
    """Write what the families of these verbs read: vectors, texts and maps, models and recipes, series."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    if verbs & {"transport", "merge", "compare"}:
        pins("transport").pictures(inputs)
        for number, weight in enumerate((0.3, 0.7)):
            models = [{"model": str(inputs / name)} for name in ("tuned", "same")]
            parameters = {"weight": weight, "normalize": False}
            recipe = {"merge_method": "linear", "models": models, "parameters": parameters}
            recipe["compatibility"] = "warn"
            (inputs / f"recipe-{number}.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    if verbs & {"translate", "LazyIndex"}:
        translate = pins("translate")
        old, new = translate.spaces(translate.ROWS)
        translate.write_inputs(inputs, old, new)
        np.save(inputs / "old.npy", old)
        rows = pq.read_table(inputs / "old.parquet").slice(0, 30)
        pq.write_table(
            rows, inputs / "few.parquet"
        )  # an embedded Qdrant calls on files 15 times for each row
        translate.tiny_encoder(inputs / "encoder")
        for name, method in (("map-0", "ridge"), ("map-1", "procrustes")):
            places = (inputs / "old.parquet", inputs / "new.parquet", inputs / name)
            translate.run("fit", *places, "--method", method)
    if "bench" in verbs:
        toy = runpy.run_path(str(PINS.parent / "suites" / "conftest.py"))["TOY"].replace("NEEDS", "()")
        (inputs / "suites").mkdir()
        head = f"LOG = {str(inputs / 'log')!r}\nSLEEP = 0\n"
        (inputs / "suites" / "toy_suite.py").write_text(head + toy, encoding="utf-8")
    if "adapt" in verbs:
        adapt = pins("adapt")
        adapt.text_body(inputs / "bert")
        series, labels = adapt.waves(60)
        split = ["train"] * 40 + ["test"] * 20
        table = pa.table({"series": series.tolist(), "label_name": labels.tolist(), "split": split})
        pq.write_table(table, inputs / "waves.parquet")
        from transship.cli import main

        main(["adapt", "fit", str(inputs / "adapted"), *adapting(inputs)])


def adapting(inputs: Path, steps: int = 4) -> list[str]:
    """Return the words of a short fit."""
    words = ["--backbone", inputs / "bert", "--train", inputs / "waves.parquet", "--steps", steps]
    return [*map(str, words), *SHORT]


# where `translate apply` writes, by the kind of store
STORES = {
    "parquet file": "out.parquet",
    "parquet folder": "out",
    "npy": "out.npy",
    "faiss": "out.faiss",
    "lance": "db/out.lance",
}


def families(inputs: Path) -> dict[str, Family]:
    """Return every command that writes, by name."""

    def words(text: str) -> list[str]:
        return [part.replace("@", f"{inputs}/") if "@" in part else part for part in text.split()]

    moved = "transport @a @tuned @same out --data @seen.npz --batches 2 --method theseus --force --strength"
    apply = "translate apply @map-{} @old.parquet {} --force"
    applied = {
        f"translate apply, {name}": Family(words(apply.format(0, out)), words(apply.format(1, out)))
        for name, out in STORES.items()
    }
    few = apply.replace("old.", "few.")
    applied["translate apply, qdrant"] = Family(
        words(few.format(0, "qdrant:db#out")), words(few.format(1, "qdrant:db#out")), clears=True
    )
    merge = "merge run @recipe-{}.yaml out --force"
    start = "merge start out --base @a --method average"
    adding = "merge add out @tuned --data @seen.npz"
    embed = "translate embed --model @encoder @texts.parquet out.parquet --force"
    predict = "adapt predict @adapted @waves.parquet --out out.csv --force"
    bench = "bench toy-suite --suites @suites --quick --jobs 1 --out out --force --seed"
    compare = "compare @a @same --data @plain.npy --inputs 20 --report out.html --force"
    return {
        "transport": Family(words(f"{moved} 1"), words(f"{moved} 2")),
        "merge run": Family(words(merge.format(0)), words(merge.format(1))),
        "merge start": Family(words(f"{start} --force"), words(start.replace("average", "task-arithmetic"))),
        "merge add": Family(words(adding), words(start), once=True),
        "merge remove": Family(
            words("merge remove out @tuned --data @seen.npz"), words(start), (words(adding),), once=True
        ),
        "translate fit": Family(
            words("translate fit @old.parquet @new.parquet out --method ridge --force"),
            words("translate fit @old.parquet @new.parquet out --method procrustes --force"),
        ),
        **applied,
        "translate embed": Family(words(embed), words(embed + " --prompt sea")),
        "translate anchors": Family(
            words("translate anchors @old.parquet out.parquet --count 50 --force"),
            words("translate anchors @old.parquet out.parquet --count 60 --force"),
        ),
        "LazyIndex": Family(write_back, grows=True),
        "adapt fit": Family(
            ["adapt", "fit", "out", *adapting(inputs), "--force"],
            ["adapt", "fit", "out", *adapting(inputs, 3), "--force"],
        ),
        "adapt predict": Family(words(predict), words(predict + " --split test")),
        "compare": Family(words(compare)),
        "bench": Family(words(f"{bench} 0"), words(f"{bench} 7")),
    }  # fmt: skip


def write_back(inputs: Path) -> None:
    """Move rows to the folder `out` as a search does, some at a time."""
    import numpy as np

    from transship.verbs.translate.stores.index import FolderRows

    vectors, rows = np.load(inputs / "old.npy"), FolderRows("out", "new model")
    for start in range(0, 60, 6):
        rows.add([f"row {number}" for number in range(start, start + 6)], vectors[start : start + 6])


def content(work: Path) -> Any:
    """Return what there is of an output, as a reader of transship sees it, but for what differs by chance."""
    from transship.atomic import recover

    pin = _pin()
    outs = [*work.glob("out*"), *work.glob("db/out.lance")]
    for name in ("out", "out.npy", "out.faiss", "out.parquet"):
        recover(work / name)
    recover(work / "db" / "out.lance")
    outs = sorted({*work.glob("out*"), *work.glob("db/out.lance")})
    if any(out.suffix == ".lance" for out in outs):
        return ["lance", _lance(work / "db")]
    if (work / "db" / "meta.json").exists():
        return _qdrant(work / "db")
    if (work / "out" / "vectors.f32").exists() or (work / "out" / "about.json").exists():
        return _moved(work / "out")
    files = [
        (str(out.relative_to(work)), where, file)
        for out in outs
        for where, file in pin.files(out)
        if ".transship-" not in where
    ]
    pages = sorted(out.name for out in outs if out.suffix == ".html")
    return [
        [out, where, pin.digest(file, work)] for out, where, file in files if file.suffix != ".html"
    ] + pages


def _lance(database: Path) -> str:
    import lancedb

    table = lancedb.connect(str(database)).open_table("out")
    rows = json.dumps(sorted(map(json.dumps, table.to_arrow().to_pylist())))
    return hashlib.sha256(rows.encode()).hexdigest()


def _qdrant(database: Path) -> list[str]:
    from qdrant_client import QdrantClient

    client = QdrantClient(path=str(database))
    try:
        if not client.collection_exists("out"):
            return []
        points, _ = client.scroll("out", limit=10_000, with_vectors=True)
        return sorted(json.dumps(point.model_dump(), sort_keys=True, default=str) for point in points)
    finally:
        client.close()


def _moved(folder: Path) -> list[Any]:
    from transship.verbs.translate.stores.index import FolderRows

    rows = FolderRows(folder)
    known = list(rows.known)
    return [known, rows.many(known).tolist() if known else []]


def _pin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pin", PINS / "pin.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listing(work: Path) -> list[str]:
    """Return everything that lies in a folder; of a table, that it is there."""
    names = (file.relative_to(work).as_posix() for file in work.rglob("*"))
    return sorted(name for name in names if ".lance/" not in name and not name.startswith("cache"))


def environment(work: Path) -> None:
    """Keep caches in the command's own folder."""
    os.environ["TRANSSHIP_CACHE"] = str(work / "cache")
