"""`transship inspect`: what a checkpoint, an adapter, an update, a map or another artifact is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from transship import activations, checkpoints, data
from transship.cli.options import memory_option, model_options, show
from transship.data.fasta import FASTA
from transship.errors import TransshipError
from transship.numerics import INTERPRETER, TORCH, MemoryBudget, format_bytes
from transship.outside import complete, read_json
from transship.report import Column, Facts, Page, Section, Table
from transship.verbs import adapt, translate

_MOVED_MOST = 12  # tensors of an update that are printed


@click.command("inspect", epilog="Example: transship inspect sentence-transformers/all-MiniLM-L6-v2 --sites")
@click.argument("path")
@click.option("--base", help="Show what PATH, a fine-tune or an adapter, changed in this model.")
@click.option("--sites", "all_sites", is_flag=True, help="List every site, not only their numbers by role.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@memory_option
@model_options
def command(
    path: str, base: str | None, all_sites: bool, as_json: bool, memory: str | None, **allowed: bool
) -> None:
    """Show what a model, an adapter or a result is.

    PATH is a checkpoint (a folder, a file or a hub id), an adapter, or what a verb wrote. Of a map, an
    adapted model or a fusion it says how it was made and what was measured. Names, shapes and dtypes of
    weights come from the files' headers; weights are read only for --base.
    """
    if base is None:
        # sites are found in an empty model, and artifacts of the verbs by their classes: both import torch
        MemoryBudget.parse(memory, TORCH).require(0, f"inspecting {path}")
        for file, describe_artifact in _ARTIFACTS.items():
            if (Path(path) / file).is_file():
                with complete(f"{path}/{file}"):
                    page = describe_artifact(Path(path))
                show(page, as_json=as_json)
                return
        if (other := _other(Path(path).expanduser(), path)) is not None:
            show(other, as_json=as_json)
            return
    with checkpoints.open(data.local_model(path), **allowed) as checkpoint:
        if base is not None:
            MemoryBudget.parse(memory, INTERPRETER).require(_update_bytes(checkpoint), f"what {path} changed")
        description = dataclasses.replace(checkpoints.describe(checkpoint), name=path)
        further: list[Section] = []
        if base is not None:
            with checkpoints.open(data.local_model(base), **allowed) as original:
                further.append(_update_section(_update_rows(original, checkpoint), base))
        elif description.kind == "checkpoint":
            sites = activations.checkpoint_sites(checkpoint)
            further.append(_sites_section(sites, whole=all_sites))
    show(_page(description, further), as_json=as_json)


def _page(description: checkpoints.Description, further: Sequence[Section]) -> Page:
    what = f"{description.kind}, {description.architecture}" if description.architecture else description.kind
    tensors = f"{description.parameters:,} parameters in {description.tensors} tensors"
    summary = f"{tensors}, {format_bytes(description.nbytes)} ({', '.join(description.dtypes)})"
    ties = {f"tied {alias}": tensor for alias, tensor in description.tied.items()}
    facts = [
        Facts(dataclasses.asdict(description), shown=False),
        Facts({**description.settings, **ties}, in_json=False),
    ]
    return Page(f"{description.name}: {what}", summary, [Section("", facts), *further])


def _sites_section(sites: Sequence[activations.Site], *, whole: bool) -> Section:
    rows = [dataclasses.asdict(site) | {"name": site.name} for site in sites]
    if whole:
        table = [[site.name, f"{site.in_width} → {site.out_width}", site.path] for site in sites]
        return Section(
            "Sites",
            [Facts({"sites": rows}, shown=False), Table(["site", "widths", "path"], table, whole=True)],
        )
    counts = Counter(
        (f"{site.stack}.{site.role}" if site.stack else site.role, site.in_width, site.out_width)
        for site in sites
    )
    by_role = [[name, count, f"{width} → {out_width}"] for (name, width, out_width), count in counts.items()]
    roles = Table(["role", "sites", "widths"], by_role)
    return Section("Sites by role (--sites lists them all)", [Facts({"sites": rows}, shown=False), roles])


def _update_section(rows: Sequence[dict[str, Any]], base: str) -> Section:
    moved = [row for row in rows if row["norm"] > 0]
    most = [[100 * row["relative"], row["tensor"], row["norm"], row["rank"]] for row in moved[:_MOVED_MOST]]
    columns = [
        Column("change", 2, unit="%"),
        Column("tensor", code=True),
        Column("norm", code=True),
        Column("rank"),
    ]
    if all(row["rank"] is None for row in moved):
        columns, most = columns[:-1], [row[:-1] for row in most]
    title = f"{len(moved)} of {len(rows)} tensors differ from {base}; those that moved most"
    return Section(title, [Facts({"update": rows}, shown=False), Table(columns, most)])


def _update_bytes(tuned: checkpoints.Checkpoint) -> int:
    """Return what reading an update takes: chunks of both sides, and an adapter's largest pair of factors."""
    sizes = [info.size for info in tuned.tensors.values()] if isinstance(tuned, checkpoints.Adapter) else []
    return 16 * 4 * checkpoints.CHUNK + 4 * 4 * max(sizes, default=0)


def _update_rows(base: checkpoints.Checkpoint, tuned: checkpoints.Checkpoint) -> list[dict[str, Any]]:
    if isinstance(tuned, checkpoints.Adapter):
        return checkpoints.describe_update(checkpoints.Update.from_adapter(tuned, base))
    return checkpoints.describe_update(checkpoints.Update.between(base, tuned))


def _artifact(facts: dict[str, Any], lines: Sequence[str]) -> Page:
    return Page(
        lines[0], "\n".join(line.strip() for line in lines[1:]), [Section("", [Facts(facts, shown=False)])]
    )


def _translator(folder: Path) -> Page:
    document = translate.read_document(folder)
    about, state = document.get("about", {}), document["state"]
    old, new = state.get("n_features_in_"), state.get("n_features_out_")
    facts = {
        "kind": "translator",
        "method": document["method"],
        "parameters": document["parameters"],
        "widths": [old, new],
        "hash": document["hash"],
        "about": about,
    }
    lines = [f"{folder}: map of embeddings, {document['method']}, {old} → {new} wide"]
    if about.get("source") or about.get("target"):
        lines.append(f"{about.get('source') or 'unnamed'} → {about.get('target') or 'unnamed'}")
    pairs, quality = about.get("pairs", {}), about.get("quality", {})
    if pairs:
        lines.append(f"fitted on {pairs['count']:,} pairs of {pairs['old']} and {pairs['new']}")
    held = quality.get("held_out")
    if held:
        alone = quality.get("old_alone")
        beside = "" if alone is None else f" (old index alone {alone:.3f})"
        lines.append(f"held out: recall@{held['k']} {held['recall']:.3f}{beside}, {quality['kind']}")
    return _artifact(facts, lines)


def _adapted(folder: Path) -> Page:
    document = adapt.read_document(folder)
    about = document["about"]
    names = ("backbone", "task", "method", "metric", "rows", "validation", "baselines", "advice", "data")
    facts = {
        "kind": "adapted",
        **{name: about.get(name) for name in (*names, "test", "advised")},
        "inputs": document["inputs"],
    }
    size = " × ".join(map(str, [document["inputs"]["channels"], *document["inputs"]["size"]]))
    metric = about["metric"]
    lines = [
        f"{folder}: adapted model, {about['method']} on {about['backbone']}",
        f"{about['task']} of {document['inputs']['kind']} ({size})",
        f"{about['rows']['train']:,} training rows; validation {metric} {about['validation'][metric]:.4f}",
    ]
    lines += [f"raw {row['name']}: {row['validation']:.4f}" for row in about.get("baselines", [])]
    lines += [f"test {metric} of {name}: {value:.4f}" for name, value in about.get("test", {}).items()]
    return _artifact(facts, lines + ([about["advice"]] if about.get("advice") else []))


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_TABLES = (".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".npz", *FASTA)


def _other(place: Path, path: str) -> Page | None:
    """Return what a file or folder is that holds no weights: a store, a result's JSON, rows, or None."""
    ending = place.suffix.lower()
    if place.is_dir():
        return _folder(place, path)
    if not place.is_file() or ending in _WEIGHTS:
        return None
    if ending == ".json":
        return _json(place, path)
    if ending in (".yaml", ".yml"):
        return _artifact({"kind": "recipe"}, [f"{path}: a recipe; see `transship merge plan {path}`"])
    if ending in (".npy", ".faiss", ".index"):
        return _store(path)
    if ending in _TABLES:
        with contextlib.suppress(TransshipError):
            if ending == ".parquet":
                return _store(path)
        return _rows(path)
    return None


def _folder(place: Path, path: str) -> Page | None:
    if any(place.glob("*.safetensors")) or (place / "config.json").exists():
        return None
    tables = [f"{path}/{table.name}" for table in sorted(place.glob("*.lance"))]
    if tables:
        facts = {"kind": "lance", "tables": tables}
        return _artifact(facts, [f"{path}: a folder of LanceDB tables", *tables])
    if place.suffix.lower() == ".lance" or any(place.rglob("*.parquet")):
        return _store(path)
    return _rows(path) if any(file.suffix.lower() in _TABLES for file in place.iterdir()) else None


def _store(path: str) -> Page:
    source = translate.open_source(path)
    rows, width, stamp = source.rows, source.width, source.stamp
    source.close()
    facts = {"kind": "store", "rows": rows, "width": width, "stamp": dataclasses.asdict(stamp)}
    lines = [f"{path}: a store of {rows:,} vectors, {width} wide"]
    lines += [f"of the model {stamp.model}"] if stamp.model else []
    lines += [f"translated by the map {stamp.map[:8]}"] if stamp.map else []
    return _artifact(facts, lines)


def _rows(path: str) -> Page:
    rows = data.load(path)
    about = f"{path}: {len(rows):,} rows of {rows.kind}"
    labels = "no labels" if rows.labels is None else f"labels of {rows.classes or 'numeric'} classes"
    facts = {"kind": "data", "rows": len(rows), "inputs": rows.kind, "classes": rows.classes}
    sizes = ", ".join(f"{count:,} {split}" for split, count in rows.split_sizes.items())
    return _artifact(facts, [about, labels, *([f"splits: {sizes}"] if sizes else [])])


def _json(place: Path, path: str) -> Page | None:
    content = read_json(place)
    if content.get("format") or "metadata" in content:
        return None
    title = f", '{content['title']}'" if isinstance(content.get("title"), str) else ""
    names = ", ".join(list(content)[:12])
    facts = {"kind": "json", "names": list(content)}
    return _artifact(facts, [f"{path}: JSON{title}, such as --json prints", f"it holds {names}"])


def _fusion(folder: Path) -> Page:
    from transship.verbs.merge.fusion.page import status_page  # start-up: torch

    page = status_page(folder)
    kind = Section("", [Facts({"kind": "fusion"}, shown=False)])
    return dataclasses.replace(page, sections=[kind, *page.sections])


# the file by which an artifact is known → what it says of itself; no arrays are read
_ARTIFACTS: dict[str, Callable[[Path], Page]] = {
    "map.json": _translator,
    "adapted.json": _adapted,
    "fusion.json": _fusion,
}
