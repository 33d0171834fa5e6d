"""The verb's steps as functions: what the command line calls."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from transship import parallel
from transship.atomic import atomic_file, check_target
from transship.checkpoints.footprint import Footprint
from transship.data import find_model
from transship.errors import DataError, OptionError
from transship.numerics import MemoryBudget
from transship.progress import Progress, keeping
from transship.registry import build_method
from transship.report import Page
from transship.types import Array
from transship.verbs.adapt.adapted import (
    ADAPTED,
    BASE,
    RAW,
    SOURCE,
    WEIGHTS,
    Adapted,
    read_adapted,
    read_document,
    save_adapted,
)
from transship.verbs.adapt.bound import MOST_POINTS, Bound, measure_bound
from transship.verbs.adapt.fit import adapt
from transship.verbs.adapt.model.embedder import Shape
from transship.verbs.adapt.model.network import FORWARD_ROWS
from transship.verbs.adapt.raw.models import FEATURE_ROWS
from transship.verbs.adapt.result import FurtherFits, fit_page, prediction_page
from transship.verbs.adapt.rows.reading import Examples, read_rows, read_validation
from transship.verbs.adapt.settings import CommandSettings
from transship.verbs.adapt.train.problem import AdaptMethod

# random convolutions give about 10,000 features of a row; the baselines hold them in float64, with copies
_BASELINE = 3 * 8 * 10_000


@dataclass(frozen=True, eq=False)
class FitResult:
    """A model that was fitted and written.

    Attributes:
        adapted: the model.
        folder: where it is.
        settings: that it was fitted with.
        train: the rows that were given to learn from.
        held: inputs and targets of those that it chose by.
        main: False in the other processes of a launch, which write nothing.
        further: other fits of the same rows.
    """

    adapted: Adapted
    folder: Path
    settings: CommandSettings
    train: Examples
    held: tuple[Array, Array]
    main: bool = True
    further: FurtherFits = field(default_factory=FurtherFits)

    def page(self, command: str = "", *, pictures: bool = True) -> Page:
        """Return the page, with the bound on the validation rows where it has a source and classes."""
        adapted, bound = self.adapted, None
        if pictures and adapted.source is not None and adapted.targets.classes is not None:
            bound = measure_bound(adapted, *self.held, seed=self.settings.seed)
        return fit_page(
            adapted, folder=self.folder, command=command, further=self.further, bound=bound, pictures=pictures
        )


def fit(
    reference: Any,
    folder: str | Path,
    settings: CommandSettings,
    *,
    column: str | None = None,
    label: str | None = None,
    force: bool = False,
    seen: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
    memory: MemoryBudget | None = None,
) -> FitResult:
    """Fit on a data set and write the model; what `memory` does not hold is refused before it begins.

    Of a data set with splits only `train` is learned from, and `validation`, where there is one, is what it
    chooses by. On `test` every model is measured once, after everything is chosen. Of other data that
    `settings.validation` names, the `validation` split is read, or all rows where it has no splits. With
    `settings.compare` the raw baselines come first, and unless told otherwise the network stands on the best
    of them, and validation may choose that one alone.
    """
    reads = {"TRAIN": reference, "--backbone": settings.backbone, "--validation": settings.validation}
    target = check_target(folder, force=force, kind="folder", reads=reads)
    columns: Any = {"kind": settings.kind, "column": column, "label": label, "missing": settings.missing}
    rows, dataset = read_rows(reference, **columns)
    held: Any = settings.validation
    if dataset.splits is not None:
        rows, _ = read_rows(reference, **columns, split="train")
    if isinstance(held, str):
        other = read_validation(held, rows, **columns)
        held = (other.inputs, other.targets)
    elif "validation" in dataset.split_sizes:
        other, _ = read_rows(reference, **columns, split="validation")
        held = (other.inputs, other.targets)
    work = target.parent / f".{target.name}.work"
    settings = replace(settings, validation=held, work=work)
    if settings.base == "auto" and not (settings.compare and settings.predictor == "linear"):
        settings = replace(settings, base="none")
    if memory is not None and memory.limit is not None:
        instead = "pass a smaller --batch-size with --accumulation"
        memory.require(_fitting_bytes(rows.inputs, settings), f"adapting {settings.backbone}", instead)
    with keeping("the steps so far", work):
        adapted, split = adapt(
            rows.inputs, rows.targets, settings, compare=settings.compare, seen=seen, tell=tell
        )
    main = parallel.is_main()  # of several processes, one writes
    if main:
        if "test" in dataset.split_sizes:
            adapted = _tested(adapted, read_rows(reference, **columns, split="test")[0])
        save_adapted(adapted, folder, force=force)
        if work.is_dir() and not any(work.iterdir()):
            work.rmdir()
    return FitResult(adapted, Path(folder), settings, rows, (split.held_inputs, split.held_targets), main)


def _tested(adapted: Adapted, rows: Examples) -> Adapted:
    """Return the model with the metric of every model on test rows, by name."""
    try:
        figures = _figures(adapted, rows)
    except DataError as error:  # a class that training does not have costs these figures, not the model
        note = f"the test split was not measured: {error.what}"
        return replace(adapted, about={**adapted.about, "notes": [*adapted.about["notes"], note]})
    return replace(adapted, about={**adapted.about, "test": figures})


def _figures(adapted: Adapted, rows: Examples, **known: Array) -> dict[str, float]:
    """Return the metric of every model on rows; `known` has outputs by name that are there already."""
    metric = adapted.about["metric"]
    return {
        name: adapted.measured(
            known[name] if name in known else adapted.outputs_of(name, rows.inputs), rows.targets
        )[metric]
        for name in (ADAPTED, *adapted.raw)
    }


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of rows.

    Attributes:
        values: predictions in the user's own values.
        metrics: on these rows, where they have targets.
        model: whose they are: `adapted`, or a raw model's name.
        metric: the one that the fit chose by.
        figures: this metric for every model by name, where the rows have targets.
        rows: what was read.
        out: the file with them, or None.
    """

    values: Array
    metrics: Mapping[str, float]
    model: str
    metric: str
    figures: Mapping[str, float]
    rows: Examples
    out: Path | None

    def page(self) -> Page:
        """Return what `transship adapt predict` says."""
        figures = self.model, self.metric, self.figures
        return prediction_page(self.values, list(self.rows.ids), self.metrics, self.out, figures)


def predict(
    folder: str | Path,
    reference: Any,
    *,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
    use: str = "auto",
    out: Path | None = None,
    force: bool = False,
    memory: MemoryBudget | None = None,
) -> Predictions:
    """Return predictions for a data set, with metrics where it has targets, and write them if asked.

    `use` names the model that answers: `adapted`, a raw model, or the one that the fit advised (auto).
    `memory` decides how many rows run at once.
    """
    if out is not None:
        check_target(out, force=force, kind="file", reads={"MODEL": folder, "DATA": reference})
        _check_suffix(out)
    kind = _kind_of(Path(folder))
    rows, _ = read_rows(reference, kind=kind, column=column, label=label, split=split, needs_targets=False)
    adapted = _read(folder, rows, memory, _predicting_bytes, f"predicting {len(rows.inputs):,} rows")
    targets, model = adapted.targets, adapted.named(use)
    if out is not None:
        check_table(out, targets.shape)
    if rows.targets is not None:
        targets.truth(rows.targets)  # targets that do not fit are said before the rows run
    outputs = adapted.outputs_of(model, rows.inputs)
    predicted = targets.decode(outputs)
    metrics: Mapping[str, float] = {}
    figures: Mapping[str, float] = {}
    if rows.targets is not None:
        metrics = adapted.measured(outputs, rows.targets)
        figures = _figures(adapted, rows, **{model: outputs})
    if out is not None:
        _write(out, rows, predicted, adapted, outputs, force)
    return Predictions(predicted, metrics, model, adapted.about["metric"], figures, rows, out)


def bound(
    folder: str | Path,
    reference: Any,
    *,
    column: str | None = None,
    label: str | None = None,
    split: str | None = None,
    seed: int = 0,
    memory: MemoryBudget | None = None,
) -> Bound:
    """Return the terms of Theorem 7 on a data set that did not train; `memory` as in `predict`."""
    rows, _ = read_rows(reference, kind=_kind_of(Path(folder)), column=column, label=label, split=split)
    adapted = _read(folder, rows, memory, _bounding_bytes, "measuring the bound")
    return measure_bound(adapted, rows.inputs, rows.targets, seed=seed)


def read_omegas(text: str, settings: CommandSettings) -> list[float]:
    """Return the ω of `--sensitivity`; refuse what is none, and methods in which ω decides nothing."""
    method: AdaptMethod = build_method("adapt", settings.method, settings.method_options)
    if not method.uses_omega and settings.predictor != "transport":
        raise OptionError(
            f"ω decides nothing in {settings.method}: every fit would be the same",
            where="--sensitivity",
            fix="leave it out, or choose the method recraft",
        )
    omegas = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise OptionError(
                f"'{part}' is no ω", where="--sensitivity", fix="give numbers above 0, such as 0.1,0.3,1"
            )
        omegas.append(value)
    return omegas


def sensitivity(result: FitResult, omegas: Sequence[float], *, seen: Progress | None = None) -> FitResult:
    """Fit again with each ω; return the result with pairs (ω, validation metric), Fig. 6."""
    points = []
    for omega in omegas:
        about = _refitted(result, seen, omega=float(omega)).about
        points.append((float(omega), float(about["validation"][about["metric"]])))
    return replace(result, further=replace(result.further, sensitivity=points))


def broken_off(settings: CommandSettings, points: int) -> Sequence[tuple[dict[str, Any], str]]:
    """Return options of the method with stage 1 broken off at so many places, each with its name."""
    method: AdaptMethod = build_method("adapt", settings.method, settings.method_options)
    if not method.path(2):
        raise OptionError(
            f"{settings.method} has no path of FA and FLD",
            where="--path",
            fix="leave it out, or choose recraft or fa",
        )
    if points < 2:
        raise OptionError(f"it is {points}", where="--path", fix="give 2 or more")
    return [({**(settings.method_options or {}), **steps}, name) for steps, name in method.path(points)]


def path(result: FitResult, points: int, *, seen: Progress | None = None) -> FitResult:
    """Fit again with stage 1 broken off at so many places, from none of it to all: Figs. 2 and 3.

    Each fit runs the whole of stage 2 without a raw model under it, as the paper has it; the first one is
    naive fine-tuning. The result has for each place the semantic gap ω·W₁ + FLD there, and the validation
    metric in the end.
    """
    stops, clouds = [], {}
    for options, name in broken_off(result.settings, points):
        other = _refitted(result, seen, method_options=options, base="none")
        about, row = other.about, other.about["stage1"][-1]
        assert other.source is not None
        gap = other.source.omega * row["w1"] + row["fld"]
        validation = float(about["validation"][about["metric"]])
        stops.append({"name": name, "gap": gap, "validation": validation})
        clouds[name] = other.snapshots["stage 2"]
    return replace(result, further=replace(result.further, path=stops, clouds=clouds))


def _refitted(result: FitResult, seen: Progress | None, **changes: Any) -> Adapted:
    """Return the same fit with other parameters."""
    settings = replace(result.settings, work=None, **changes)
    return adapt(result.train.inputs, result.train.targets, settings, seen=seen)[0]


def _fitting_bytes(inputs: Array, settings: CommandSettings) -> int:
    """Return the bytes that a fit takes beside the interpreter, from above.

    The rows as arrays and as tensors; the baselines' features; the weights as read, trained and kept at their
    best; gradients, Adam's moments and the activations of one batch.
    """
    model = Footprint.of(str(find_model(str(settings.backbone))))
    tokens = None if inputs.ndim == 4 else settings.tokens + 2
    rows = 4 * (inputs.nbytes if inputs.dtype.kind == "U" else 4 * inputs.size) + len(inputs) * _BASELINE
    return rows + 3 * model.weights + model.training(settings.batch_rows(len(inputs)), tokens)


def _predicting_bytes(place: Path, inputs: Array) -> tuple[int, int]:
    """Return the bytes that predicting takes beside the interpreter, and those of each row that runs at once.

    The rows as arrays and as tensors; the files as bytes, as tensors and in the network; of the raw model
    under it the features of some rows.
    """
    files = sum((place / name).stat().st_size for name in (WEIGHTS, BASE, RAW) if (place / name).exists())
    raw = any((place / name).exists() for name in (BASE, RAW))
    features = FEATURE_ROWS * _BASELINE if raw else 0
    tokens = Shape.from_dict(read_document(place)["embedder"]).tokens
    return 4 * 4 * inputs.size + 3 * files + features, Footprint.of(str(place)).forward(1, tokens)


def _bounding_bytes(place: Path, inputs: Array) -> tuple[int, int]:
    """Return the same for the bound: the pretrained body stands beside, and gradients flow back through it.

    Distances between a thousand rows and as many items are held in float64, a few times over.
    """
    fixed, each = _predicting_bytes(place, inputs)
    model = Footprint.of(str(place))
    source = (place / SOURCE).stat().st_size if (place / SOURCE).exists() else 0
    return fixed + 3 * source + 2 * model.weights + 8 * 8 * MOST_POINTS**2, model.layers * each


def _read(
    folder: str | Path,
    rows: Examples,
    memory: MemoryBudget | None,
    needs: Callable[[Path, Array], tuple[int, int]],
    what: str,
) -> Adapted:
    """Return the model that runs as many rows at once as there is memory for."""
    batch = FORWARD_ROWS
    if memory is not None and memory.limit is not None:
        fixed, each = needs(Path(folder), rows.inputs)
        batch = memory.rows(each, fixed=fixed, most=batch, what=what)
    return replace(read_adapted(folder), forward_rows=batch)


def _kind_of(folder: Path) -> str:
    """Return the kind of data that a saved model reads; no weights are read."""
    inputs = read_document(folder)["inputs"]
    return "tabular" if inputs["tabular"] else str(inputs["kind"])


def _check_suffix(out: Path) -> None:
    if out.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise OptionError(
            f"'{out.suffix}' is no format for predictions",
            where=str(out),
            fix="name a .csv, .parquet or .npy",
        )


def check_table(out: Path, shape: tuple[int, ...]) -> None:
    """Refuse a table for predictions of that shape, if they have more than one axis each."""
    if len(shape) > 1 and out.suffix.lower() != ".npy":
        raise OptionError("fields do not fit a table", where=str(out), fix="name a .npy file")


def _write(
    out: Path, rows: Examples, predicted: Array, adapted: Adapted, outputs: Array, force: bool
) -> None:
    suffix, targets = out.suffix.lower(), adapted.targets
    with atomic_file(out, force=force) as draft:
        if suffix == ".npy":
            np.save(draft, predicted, allow_pickle=False)
            return
        columns: dict[str, Any] = {"id": list(map(str, rows.ids))}
        if predicted.ndim == 1:
            columns["prediction"] = predicted.tolist()
        else:
            columns |= {f"prediction_{place}": column.tolist() for place, column in enumerate(predicted.T)}
        scores = targets.scores(outputs)
        if targets.classes is not None and scores is not None:
            columns |= {f"p_{name}": scores[:, place].tolist() for place, name in enumerate(targets.classes)}
        table = pyarrow.table(columns)
        (pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table)(table, str(draft))
