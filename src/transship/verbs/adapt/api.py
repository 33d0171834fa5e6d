"""The verb's steps as functions: what the command line calls, and nothing of its own."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transship import parallel
from transship.atomic import atomic_file, check_target
from transship.errors import OptionError
from transship.numerics import MemoryBudget
from transship.registry import build_method
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.artifact import load_adapted, saved_kind
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.memory import bounding_bytes, fitting_bytes, predicting_bytes
from transship.verbs.adapt.rows.reading import Rows, read_rows, read_validation
from transship.verbs.adapt.settings import COMMAND
from transship.verbs.adapt.train.learner import FORWARD_BATCH
from transship.verbs.adapt.train.protocol import AdaptMethod

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that was fitted and written; `main` is False in the other processes of a launch."""

    model: Recraft
    folder: Path
    train: Rows
    main: bool = True

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        about = self.model.adapted_.about
        names = (
            "backbone",
            "task",
            "method",
            "metric",
            "rows",
            "validation",
            "baselines",
            "advice",
            "notes",
            "data",
        )
        return (
            {"model": str(self.folder)}
            | {name: about.get(name) for name in names}
            | {
                "stage1": about["stage1"],
                "history": about["history"],
                "seconds": dict(self.model.seconds_),
            }
        )


def fit(
    reference: Any,
    folder: str | Path,
    *,
    column: str | None = None,
    label: str | None = None,
    validation: str | float = 0.2,
    compare: bool = True,
    force: bool = False,
    seen: Any = None,
    tell: Callable[[str], None] = lambda line: None,
    memory: MemoryBudget | None = None,
    **parameters: Any,
) -> Fitted:
    """Fit on a data set and write the model; what `memory` does not hold is refused before it begins.

    Of a data set with splits only `train` is learned from, and `validation`, where there is one, is what it
    chooses by; a test split is never read. Of other data named by `validation` likewise: its `validation`
    split, or all rows where it has no splits. With `compare` the raw baselines come first, and unless told
    otherwise the network stands on the best of them (`base`), and validation may choose that one alone: on
    few rows random convolutions erred less than every adapted body that was measured.
    """
    target = check_target(folder, force=force)
    columns: Any = {"kind": str(parameters.get("kind", "auto")), "column": column, "label": label}
    rows, found = read_rows(reference, **columns)
    held: Any = validation
    if found.splits is not None:
        rows, _ = read_rows(reference, **columns, split="train")
    if isinstance(validation, str):
        other = read_validation(validation, rows, **columns)
        held = (other.inputs, other.targets)
    elif "validation" in found.split_sizes:
        other, _ = read_rows(reference, **columns, split="validation")
        held = (other.inputs, other.targets)
    if compare and parameters.get("predictor", "linear") == "linear":
        parameters = {**COMMAND, **parameters}
    if memory is not None and memory.limit is not None:
        instead = "pass a smaller --batch-size with --accumulation"
        memory.require(fitting_bytes(rows.inputs, parameters), f"adapting {parameters['backbone']}", instead)
    work = target.parent / f".{target.name}.work"
    model = Recraft(validation=held, work=work, **parameters)
    model.fit(rows.inputs, rows.targets, compare=compare, seen=seen, tell=tell)
    if not parallel.is_main():  # of several processes, one writes
        return Fitted(model, Path(folder), rows, main=False)
    model.save(folder, force=force)
    if work.is_dir() and not any(work.iterdir()):
        work.rmdir()
    return Fitted(model, Path(folder), rows)


def predict(
    folder: str | Path,
    reference: Any,
    *,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    memory: MemoryBudget | None = None,
) -> tuple[Array, dict[str, float], Rows]:
    """Return predictions for a data set, its metrics where it has targets, and the rows.

    Write them if asked. `memory` decides how many rows run at once.
    """
    if out is not None:
        check_target(out, force=force)
        _check_suffix(Path(out))
    kind = saved_kind(folder)
    rows, _ = read_rows(reference, kind=kind, column=column, label=label, split=split, needs_targets=False)
    batch = FORWARD_BATCH
    if memory is not None and memory.limit is not None:
        fixed, each = predicting_bytes(folder, rows.inputs)
        batch = memory.rows(each, fixed=fixed, most=batch, what=f"predicting {len(rows.inputs):,} rows")
    adapted = load_adapted(folder).adapted_
    if out is not None:
        _check_table(Path(out), adapted)
    # targets that do not fit are said before the rows run
    wanted = None if rows.targets is None else adapted.targets.truth(rows.targets)
    adapted.forward_rows = batch
    outputs = adapted.outputs(rows.inputs)
    made = adapted.targets.decode(outputs)
    metrics = adapted.measured(outputs, rows.targets) if wanted is not None else {}
    if out is not None:
        _write(Path(out), rows, made, adapted, outputs, force)
    return made, metrics, rows


def bound(
    folder: str | Path,
    reference: Any,
    *,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
    seed: int = 0,
    memory: MemoryBudget | None = None,
) -> Any:
    """Return the terms of Theorem 7 on a data set that did not train; `memory` as in `predict`."""
    from transship.verbs.adapt.bound.terms import measure_bound

    rows, _ = read_rows(reference, kind=saved_kind(folder), column=column, label=label, split=split)
    batch = FORWARD_BATCH
    if memory is not None and memory.limit is not None:
        fixed, each = bounding_bytes(folder, rows.inputs)
        batch = memory.rows(each, fixed=fixed, most=batch, what="measuring the bound")
    model = load_adapted(folder)
    model.adapted_.forward_rows = batch
    return measure_bound(model, rows.inputs, rows.targets, seed=seed)


def read_omegas(text: str, parameters: Mapping[str, Any]) -> list[float]:
    """Return the ω of `--sensitivity`; refuse what is none, and methods in which ω decides nothing."""
    name = str(parameters.get("method", "recraft"))
    method: AdaptMethod = build_method("adapt", name, parameters.get("method_options"))
    if not method.uses_omega and parameters.get("predictor", "linear") != "transport":
        raise OptionError(
            f"ω decides nothing in {name}: every fit would be the same",
            where="--sensitivity",
            fix="leave it out, or choose the method recraft",
        )
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise OptionError(
                f"'{part}' is no ω", where="--sensitivity", fix="give numbers above 0, such as 0.1,0.3,1"
            )
        found.append(value)
    return found


def sensitivity(fitted: Fitted, omegas: Sequence[float], *, seen: Any = None) -> list[tuple[float, float]]:
    """Fit again with each ω; return (ω, validation metric) pairs, Fig. 6."""
    points = []
    for omega in omegas:
        other = _refitted(fitted, seen, omega=float(omega))
        points.append((float(omega), float(other.validation_[other.metric_])))
    fitted.model.adapted_.about["sensitivity"] = [list(point) for point in points]
    return points


def path(fitted: Fitted, points: int, *, seen: Any = None) -> list[dict[str, Any]]:
    """Fit again with stage 1 broken off at so many places, from none of it to all: Figs. 2 and 3.

    Each fit runs the whole of stage 2 without a raw model under it, as the paper has it; the first one is
    naive fine-tuning. Return for each place the semantic gap ω·W₁ + FLD there, and the validation metric in
    the end.
    """
    found, clouds = [], {}
    for options, name in broken_off(fitted.model.method, fitted.model.method_options, points):
        other = _refitted(fitted, seen, method_options=options, base="none")
        row, metric = other.stage1_[-1], other.metric_
        assert other.source_ is not None
        gap = other.source_.omega * row["w1"] + row["fld"]
        found.append({"name": name, "gap": gap, "validation": float(other.validation_[metric])})
        clouds[name] = other.adapted_.snapshots["stage 2"]
    fitted.model.adapted_.about["path"] = found
    fitted.model.adapted_.path_clouds = clouds
    return found


def broken_off(name: str, options: Mapping[str, Any] | None, points: int) -> list[tuple[dict[str, Any], str]]:
    """Return options of the method with stage 1 broken off at so many places, each with its name.

    Draws depend on the step and not on how many there are, so that a shorter stage 1 is the beginning of the
    longer one.
    """
    method: Any = build_method("adapt", name, options)
    if name not in ("recraft", "fa"):
        raise OptionError(
            f"{name} has no path of FA and FLD", where="--path", fix="leave it out, or choose recraft or fa"
        )
    if points < 2:
        raise OptionError(f"it is {points}", where="--path", fix="give 2 or more")
    first, second = method.fa_steps, getattr(method, "fld_steps", 0)
    places = {round(place) for place in np.linspace(0, first + second, points)}
    if second and getattr(method, "objective_order", "") == "sequence":
        places.add(first)  # where FA ends and FLD begins
    made = []
    for place in sorted(places):
        steps = {"fa_steps": min(place, first)}
        if name == "recraft":
            steps |= {"fld_steps": place - steps["fa_steps"], "select": False}
        made.append(({**(options or {}), **steps}, _place_name(place, first, second)))
    return made


def _place_name(place: int, first: int, second: int) -> str:
    if place == 0:
        return "no stage 1: NFT"
    if place == first + second:
        return "all of stage 1"
    return "FA" if place == first else f"{place} steps of stage 1"


def _refitted(fitted: Fitted, seen: Any, **changes: Any) -> Recraft:
    """Return the same fit with other parameters."""
    parameters = fitted.model.get_params() | {"work": None}
    return Recraft(**parameters | changes).fit(fitted.train.inputs, fitted.train.targets, seen=seen)


def write_report(fitted: Fitted, path: str | Path, command: str = "", *, force: bool = False) -> Path:
    """Write the page of a fit, with the bound on its validation rows where it has a source and classes."""
    from transship.report import html
    from transship.verbs.adapt.bound.terms import measure_bound
    from transship.verbs.adapt.result import fit_page

    model = fitted.model
    if model.source_ is not None and model.task_ == "classification":
        held = model.validation
        index = model.validation_index_
        rows, wanted = (
            held if isinstance(held, tuple) else (fitted.train.inputs[index], _picked(fitted.train, index))
        )
        model.adapted_.bound = measure_bound(model, rows, wanted, seed=model.seed)
    return html.write(fit_page(model.adapted_, command), path, force=force)


def bound_report(found: Any, model: str, path: str | Path, *, force: bool = False) -> Path:
    """Write the page of `transship adapt bound`."""
    from transship.report import Page, Section, html
    from transship.verbs.adapt.result import bound_blocks

    summary = f"{model}: target error {found.err_target:.3f} nats, bound {found.total:.3f}."
    page = Page("The bound of an adapted model", summary, [Section("Bound", bound_blocks(found))])
    return html.write(page, path, force=force)


def _picked(rows: Rows, index: Array) -> Array:
    assert rows.targets is not None
    return np.asarray(rows.targets[index])


def _check_suffix(out: Path) -> None:
    if out.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise OptionError(
            f"'{out.suffix}' is no format for predictions",
            where=str(out),
            fix="name a .csv, .parquet or .npy",
        )


def _check_table(out: Path, adapted: Adapted) -> None:
    if len(adapted.targets.shape) > 1 and out.suffix.lower() != ".npy":
        raise OptionError("fields do not fit a table", where=str(out), fix="name a .npy file")


def _write(out: Path, rows: Rows, made: Array, adapted: Adapted, outputs: Array, force: bool) -> None:
    suffix = out.suffix.lower()
    with atomic_file(out, force=force) as draft:
        if suffix == ".npy":
            np.save(draft, made, allow_pickle=False)
            return
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        columns: dict[str, Any] = {"id": [str(one) for one in rows.ids]}
        if made.ndim == 1:
            columns["prediction"] = made.tolist()
        else:
            columns |= {f"prediction_{number}": made[:, number].tolist() for number in range(made.shape[1])}
        if adapted.targets.task == "classification":
            classes, scores = adapted.targets.classes, adapted.targets.scores(outputs)
            assert classes is not None
            assert scores is not None
            columns |= {f"p_{name}": scores[:, place].tolist() for place, name in enumerate(classes)}
        table = pyarrow.table(columns)
        (pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table)(table, str(draft))


def as_json(value: Any) -> Any:
    """Return plain data for `--json`."""
    return json.loads(json.dumps(value, default=lambda one: one.item() if hasattr(one, "item") else str(one)))


__all__ = [
    "Fitted",
    "Rows",
    "as_json",
    "bound",
    "bound_report",
    "broken_off",
    "fit",
    "path",
    "predict",
    "read_omegas",
    "read_rows",
    "sensitivity",
    "write_report",
]
