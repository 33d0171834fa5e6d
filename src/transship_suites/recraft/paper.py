"""RECRAFT and its rivals in the paper's setting: RoBERTa for series, Swin for grids, their proxies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow.parquet

from transship.data import Dataset, wrap
from transship_suites.materials.origins import hub_folder, read
from transship_suites.materials.targets import Target, array_task, pde_task
from transship_suites.recraft.declared import CIFAR, CONLL
from transship_suites.recraft.measure import adapted, fourier_operator
from transship_suites.runner import Case, Context, Measurement

_ENTITIES = ("none", "person", "organisation", "location", "miscellaneous")
# ORCA's: clip 1, warm-up of 5 epochs, embedder and head ten times as fast, 5,000 proxy items
SETTINGS = {"proxy_items": 5000, "embedder_factor": 10.0, "clip": 1.0}


def measured(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one method on one task: methods of a seed share rows and first weights."""
    name, method, options = str(case["task"]), str(case["method"]), context.options
    about = options["tasks"][name]
    seed = context.seed("rows", name) % 2**32
    load = pde_task if "file" in about else array_task
    task = load(name, about, rows=options["rows"], test=options["test"], seed=seed)
    if method == "fno":
        figures = fourier_operator(task, seed=context.seed("fit", name) % 2**31, **options["fno"])
        yield Measurement({"backbone": "none"}, figures)
    else:
        yield Measurement({"method": method}, _fitted(task, method, about, context))


def _fitted(task: Target, method: str, about: Mapping[str, Any], context: Context) -> dict[str, float]:
    """Fit one method with the paper's numbers for the task, and return what it scores on test rows."""
    options = context.options
    settings = {**SETTINGS, **_trained(about), **options["limits"]}
    if method != "nft":
        settings["proxy"] = _proxy(about["backbone"])
    steps = dict(options["stage"])
    # FLD's epochs run over at most 128 rows of a class, ten classes standing for numbers
    rows = min(len(task.train[0]), 128 * (task.classes or 10))
    steps.setdefault("fld_steps", int(about["fld_epochs"]) * max(1, rows // 32))
    own = _stage(method, steps)
    if own:
        settings["method_options"] = own
    device = "cpu" if context.device == "cpu" else "auto"
    backbone = options["backbones"][about["backbone"]]
    return adapted(
        task,
        method,
        seed=context.seed("fit", task.name) % 2**31,
        backbone=backbone,
        settings=settings,
        device=device,
    )


def _trained(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's row of Table 8 or 9 as settings of the estimator."""
    return {
        "batch_size": about["batch"],
        "epochs": about["epochs"],
        "accumulation": about.get("accumulation", 1),
        "learning_rate": about["rate"],
        "weight_decay": about["decay"],
        "optimizer": about["optimizer"],
        "momentum": 0.99,
        "omega": 0.3 if about["backbone"] == "swin" else 0.5,
        "warmup": min(1.0, 5 / about["epochs"]),
    }


def _stage(method: str, steps: Mapping[str, int]) -> dict[str, Any]:
    """Return the lengths of stage 1 as the method's own options; the last embedder is kept."""
    aligned = {"fa_steps": steps["fa_steps"]}
    return {
        "recraft": {**aligned, "fld_steps": steps["fld_steps"], "select": False},
        "fa": aligned,
        "fa-warm": {**aligned, "steps": steps["fld_steps"]},
        "orca": {"steps": steps["fa_steps"]},
    }.get(method, {})


@cache
def _proxy(backbone: str) -> Dataset:
    if backbone == "swin":
        return read(CIFAR, "image", config="plain_text", column="img", split="train")
    return _sentences()


def _sentences() -> Dataset:
    """Return CoNLL-2003's training sentences, each under the kind of the first name in it.

    The paper's proxy labels words; a source of ours labels whole inputs.
    """
    texts: list[str] = []
    labels: list[int] = []
    for file in sorted(hub_folder(CONLL).glob("conll2003/train/*.parquet")):
        table = pyarrow.parquet.read_table(file, columns=["tokens", "ner_tags"]).to_pydict()
        for words, tags in zip(table["tokens"], table["ner_tags"], strict=True):
            if words:
                texts.append(" ".join(words))
                labels.append(_kind(tags))
    return wrap(texts, labels, kind="text", name="conll2003", label_names=_ENTITIES)


def _kind(tags: Sequence[int]) -> int:
    """Return 0 without a name, else 1 to 4: tags are O, B-PER, I-PER, B-ORG, I-ORG, B-LOC, …"""
    return next(((tag + 1) // 2 for tag in tags if tag), 0)
