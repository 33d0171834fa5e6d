"""What a user would try first: linear models of raw values and random convolutions, and a random forest.

`raw_baselines` fits each in seconds and scores it on the validation rows, so that an adapted model never
stands alone; `fit_base` fits the one that the network corrects. Penalties are chosen by exact leave-one-out
(ridge) or fixed (logistic regression, C = 1) on the training rows; the validation rows choose nothing here.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from transship.errors import DataError, OptionError
from transship.geometry import LinearMap, Moments, ridge, ridge_loo
from transship.numerics import derive_seed
from transship.registry import unknown
from transship.types import Array
from transship.verbs.adapt.raw.convolutions import draw_convolutions
from transship.verbs.adapt.raw.forest import fit_forest, linear
from transship.verbs.adapt.raw.minirocket import TAPS, draw_minirocket
from transship.verbs.adapt.raw.models import (
    BaseModel,
    Drawn,
    RawModel,
    features,
    filled,
    in_units,
    placed,
    plain_rows,
)
from transship.verbs.adapt.rows.metrics import (
    TASKS,
    Metric,
    binary_cross_entropy,
    cross_entropy,
    default_metric,
    find_metric,
    log_softmax,
)
from transship.verbs.adapt.rows.targets import Targets

KERNELS = {1: 1500, 2: 512}  # by axes of space
FIELD_KERNELS = 256
MOST_ROWS = 6000
FOLDS = 5  # by which a base without leave-one-out says what it makes of rows that it has not seen
POSITIONS = 50_000  # symbols times places: above that, one-hot positions are left out
_NAMES = ("constant", "logistic", "ridge", "ngrams", "rocket", "minirocket", "forest")


@dataclass(frozen=True, eq=False)
class RawResult:
    """A baseline with its figure on the validation rows.

    Attributes:
        name: constant, logistic, ridge, ngrams, rocket, minirocket or forest.
        validation: the metric, the smaller the better.
        seconds: CPU seconds of fitting and predicting.
        model: the fitted model.
    """

    name: str
    validation: float
    seconds: float
    model: RawModel


def raw_names(
    task: str, shape: tuple[int, ...] = (1, TAPS), *, tokens: bool = False, same_space: bool = True
) -> tuple[str, ...]:
    """Return the baselines that exist for a task and rows of a shape.

    Logistic regression needs classes, ROCKET an order, MiniRocket series of nine values, n-grams symbols.
    """
    if task not in TASKS:
        raise unknown(task, TASKS, kind="task", where="task")
    without = set() if task in ("classification", "multilabel") else {"logistic"}
    if task == "dense":
        without |= (
            {"minirocket", "forest"} if same_space and not tokens else {"minirocket", "forest", "rocket"}
        )
    if tokens or len(shape) > 2 or shape[-1] < TAPS:
        without.add("minirocket")
    if not tokens:
        without.add("ngrams")
    elif np.prod(shape) > POSITIONS:
        without |= {"logistic", "ridge", "forest"}
    return tuple(name for name in _NAMES if name not in without)


def raw_baselines(
    inputs: Any,
    targets: Any,
    validation_inputs: Any,
    validation_targets: Any,
    *,
    task: str,
    metric: Metric | str | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    kernels: int | None = None,
    tokens: bool = False,
) -> list[RawResult]:
    """Fit every baseline on the training rows and score it on the validation rows, best first.

    Args:
        inputs: [rows, features], [rows, channels, length] or [rows, channels, height, width]; NaN is missing.
        targets: classes [rows] from 0, 0/1 labels [rows, labels], or values [rows, …].
        validation_inputs: rows that nothing is fitted on.
        validation_targets: their targets.
        task: classification, multilabel, regression or dense.
        metric: by name; the task's own by default.
        seed: of the random kernels.
        names: which; all that exist by default.
        kernels: of the random convolutions; 1,500 for series and 512 for grids by default.
        tokens: inputs are one-hot symbols [rows, symbols, length].
    """
    if metric is None:
        measure = default_metric(task)
    else:
        measure = find_metric(metric, task) if isinstance(metric, str) else metric
    rows = plain_rows(inputs)
    same = _same_space(rows, np.asarray(targets), task)
    wanted = raw_names(task, rows.shape[1:], tokens=tokens, same_space=same) if names is None else names
    results = []
    for name in wanted:
        start = time.process_time()
        model = fit_raw(name, inputs, targets, task=task, seed=seed, kernels=kernels, tokens=tokens)
        predicted, scores = model.answers(validation_inputs)
        if task in ("regression", "dense"):
            predicted = predicted.reshape(np.shape(validation_targets))
        figure = measure(validation_targets, predicted, scores)
        results.append(RawResult(name, figure, time.process_time() - start, model))
    return sorted(results, key=lambda result: result.validation)


def fit_raw(
    name: str,
    inputs: Any,
    targets: Any,
    *,
    task: str,
    seed: int = 0,
    kernels: int | None = None,
    classes: int | None = None,
    tokens: bool = False,
) -> RawModel:
    """Return one baseline fitted on all rows given; arguments as of `raw_baselines`.

    `classes` is their number where some do not occur among the targets.
    """
    rows, wanted = plain_rows(inputs), np.asarray(targets)
    _check(name, rows, wanted, task, tokens)
    kept = None
    if len(rows) > MOST_ROWS and name != "constant":  # an exact ridge of more takes minutes, not seconds
        kept = np.sort(
            np.random.default_rng(derive_seed(seed, "raw rows")).permutation(len(rows))[:MOST_ROWS]
        )
        rows, wanted = rows[kept], wanted[kept]
    encoded, target = _encoded(wanted, task, classes)
    fill = _fill(rows)
    rows = filled(rows, fill)
    if name == "constant":
        return _constant(encoded, task, target)
    draw = derive_seed(seed, "raw kernels")
    if name == "rocket" and task == "dense":
        return _field_model(rows, wanted, target, fill, kernels or FIELD_KERNELS, draw)
    sees, convolutions = _sight(name, rows, kernels, draw)
    seen = features(rows, sees, convolutions)
    if name == "forest":
        forest, unseen = fit_forest(seen, wanted, task, encoded.shape[1], derive_seed(seed, "raw forest"))
        nothing, held = np.zeros((0, 0), np.float32), linear(unseen, task).reshape(-1, *target)
        empty = (nothing, nothing, 1.0, fill)
        return RawModel(name, task, sees, target, *empty, forest=forest, left_out=held, fitted_on=kept)
    centre, scale = seen.mean(0), seen.std(0)
    scale = np.where(scale > 1e-6 * (np.abs(centre) + 1e-30), scale, 1.0).astype(np.float32)
    seen = (seen - centre) / scale
    if name == "logistic" or (name == "ngrams" and task in ("classification", "multilabel")):
        weight, bias = _logistic(seen, wanted, task, target[0])
        sharpness, details, left_out = 1.0, {"C": 1.0}, None
    else:
        weight, bias, sharpness, details, left_out = _ridge(seen, encoded, wanted, task)
        left_out = left_out.reshape(-1, *target)
    scaling = (sharpness, fill, centre, scale)
    own: Any = {"convolutions": convolutions, "details": details, "left_out": left_out, "fitted_on": kept}
    return RawModel(name, task, sees, target, weight, bias, *scaling, **own)


def _sight(name: str, rows: Array, kernels: int | None, seed: int) -> tuple[str, Drawn | None]:
    """Return what a baseline sees of rows, with the kernels that it draws for them."""
    if name not in ("rocket", "minirocket"):
        return "ngrams" if name == "ngrams" else "values", None
    tensors = torch.from_numpy(rows[:, None] if rows.ndim == 2 else rows)
    if name == "minirocket":
        return "convolutions", draw_minirocket(tensors, seed=seed)
    return "convolutions", draw_convolutions(tensors, kernels or KERNELS[tensors.ndim - 2], seed=seed)


def fit_base(
    name: str,
    inputs: Array,
    truth: Array,
    targets: Targets,
    *,
    seed: int,
    tokens: bool = False,
    fitted: RawModel | None = None,
) -> tuple[BaseModel, Array]:
    """Return the base fitted on all training rows, and outputs on them of models without the row.

    The outputs of a model on its own training rows leave nothing over. Ridge regression gives exact
    leave-one-out with its fit (rows beyond the many that it takes are new to it); other models take folds.
    `fitted` is the model of that name where it was fitted on these rows already.
    """
    classes = None if targets.classes is None else len(targets.classes)
    settings: dict[str, Any] = {"task": targets.task, "seed": seed, "classes": classes, "tokens": tokens}
    whole = BaseModel(fitted or fit_raw(name, inputs, truth, **settings), targets)
    unseen = whole.model.unseen(inputs)
    if unseen is not None:
        return whole, in_units(whole.model, unseen, targets)
    folds = max(2, min(FOLDS, len(inputs) // 2))
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(inputs))
    offsets: dict[int, Array] = {}
    for part in np.array_split(order, folds):
        rest = np.setdiff1d(np.arange(len(inputs)), part)
        fold = fit_raw(name, inputs[rest], truth[rest], **settings)
        outputs = in_units(fold, fold.outputs(inputs[part]), targets)
        offsets |= dict(zip(part.tolist(), outputs, strict=True))
    return whole, np.stack([offsets[row] for row in range(len(inputs))])


def _ridge(
    features: Array, encoded: Array, wanted: Array, task: str
) -> tuple[Array, Array, float, dict[str, float], Array]:
    fit = ridge_loo(torch.from_numpy(features), torch.from_numpy(encoded))
    weight, bias = _affine(fit.map, features.shape[1])
    sharpness = 1.0
    if task in ("classification", "multilabel"):
        # predictions of rows left out are what new rows get: their likelihood sets the scale of probabilities
        sharpness = _sharpness(fit.predictions.numpy(), wanted, task)
    return weight, bias, sharpness, dict(fit.map.details), fit.predictions.numpy()


def _affine(fitted: LinearMap, width: int) -> tuple[Array, Array]:
    bias = fitted.apply(torch.zeros(1, width, dtype=torch.float64))
    return fitted.matrix.float().numpy(), bias[0].float().numpy()


def _sharpness(outputs: Array, wanted: Array, task: str) -> float:
    """Return the factor of the outputs with the best likelihood, one row more being of unknown label.

    Without that row, outputs that separate the classes would ask for an infinite factor.
    """

    def loss(power: float) -> float:
        scaled = np.exp(power) * outputs
        if task == "classification":
            return len(wanted) * cross_entropy(scaled, wanted) - float(log_softmax(scaled).mean())
        unknown_labels = np.full(wanted.shape, 0.5)
        return len(wanted) * binary_cross_entropy(scaled, wanted) + binary_cross_entropy(
            scaled, unknown_labels
        )

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 5.0), method="bounded").x))


def _logistic(features: Array, wanted: Array, task: str, outputs: int) -> tuple[Array, Array]:
    """Return weights [features, outputs] and biases; a class that does not occur gets probability e⁻³⁰."""
    weight = np.zeros((features.shape[1], outputs), np.float32)
    bias = np.full(outputs, -30.0, np.float32)
    if task == "classification":
        present = np.unique(wanted)
        coefficients, intercepts = _fit_logistic(features, wanted)
        if len(present) == 2:  # one row of coefficients, for the second class
            coefficients = np.concatenate([0 * coefficients, coefficients])
            intercepts = np.concatenate([0 * intercepts, intercepts])
        weight[:, present], bias[present] = coefficients.T, intercepts
        return weight, bias
    for column in range(outputs):
        if wanted[:, column].min() == wanted[:, column].max():
            bias[column] = 30.0 if wanted[0, column] else -30.0
        else:
            coefficients, intercepts = _fit_logistic(features, wanted[:, column])
            weight[:, column], bias[column] = coefficients[0], intercepts[0]
    return weight, bias


def _fit_logistic(features: Array, wanted: Array) -> tuple[Array, Array]:
    # start-up: models that are only read need no scikit-learn
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline in seconds, not an optimum
        fitted = LogisticRegression(C=1.0, max_iter=200).fit(features, wanted)
    return np.asarray(fitted.coef_), np.asarray(fitted.intercept_)


def _constant(encoded: Array, task: str, target: tuple[int, ...]) -> RawModel:
    mean = encoded.mean(0)
    if task in ("classification", "multilabel"):
        share = np.clip((mean + 1) / 2, 1e-6, 1 - 1e-6)
        mean = np.log(share) if task == "classification" else np.log(share / (1 - share))
    return RawModel(
        "constant", task, "nothing", target, np.zeros((0, len(mean)), np.float32), mean.astype(np.float32)
    )


def _field_model(
    rows: Array, wanted: Array, target: tuple[int, ...], fill: Array, kernels: int, seed: int
) -> RawModel:
    """Return one linear map of random convolutions, the same at every place (λ by GCV)."""
    grids = placed(torch.from_numpy(rows))
    drawn = draw_convolutions(grids, kernels, seed=seed, everywhere=True)
    fields = torch.from_numpy(np.ascontiguousarray(wanted, np.float32)).reshape(
        len(rows), -1, *rows.shape[2:]
    )
    moments = Moments.zeros(drawn.kernels, fields.shape[1])
    for some, part in drawn.fields(grids):
        moments.update(
            part.movedim(1, -1).reshape(-1, part.shape[1]),
            fields[some].movedim(1, -1).reshape(-1, fields.shape[1]),
        )
    fitted = ridge(moments)
    weight, bias = _affine(fitted, drawn.kernels)
    return RawModel(
        "rocket",
        "dense",
        "fields",
        target,
        weight,
        bias,
        1.0,
        fill,
        convolutions=drawn,
        details=fitted.details,
    )


def _encoded(wanted: Array, task: str, classes: int | None) -> tuple[Array, tuple[int, ...]]:
    """Return what a linear model fits [rows, outputs] (±1 for classes and labels) and one target's shape."""
    if task == "classification":
        count = max(int(wanted.max()) + 1, classes or 0)
        return (2.0 * (wanted[:, None] == np.arange(count)) - 1.0), (count,)
    if task == "multilabel":
        return 2.0 * (wanted > 0) - 1.0, (wanted.shape[1],)
    return wanted.reshape(len(wanted), -1).astype(np.float64), tuple(wanted.shape[1:])


def _fill(rows: Array) -> Array:
    """Return the mean of every place over the rows that have it; 0 where none has."""
    known = np.isfinite(rows)
    count = known.sum(0)
    total = np.where(known, rows, 0).sum(0, dtype=np.float64)
    mean: Array = np.divide(total, count, out=np.zeros(rows.shape[1:]), where=count > 0)
    return mean.astype(np.float32)


def _same_space(rows: Array, wanted: Array, task: str) -> bool:
    """Return whether dense targets lie on the places of the inputs, possibly with channels of their own."""
    return task != "dense" or (rows.ndim > 2 and wanted.shape[-(rows.ndim - 2) :] == rows.shape[2:])


def _check(name: str, rows: Array, wanted: Array, task: str, tokens: bool) -> None:
    known = raw_names(task, rows.shape[1:] or (1,), tokens=tokens, same_space=_same_space(rows, wanted, task))
    if name not in known:
        raise unknown(name, known, kind=f"raw baseline of {task}", where="raw baselines")
    if not 2 <= rows.ndim <= 4:
        raise OptionError(
            f"inputs of shape {list(rows.shape)} are neither rows, series nor grids",
            where="raw baselines",
            fix="give [rows, features], [rows, channels, length] or [rows, channels, height, width]",
        )
    if len(rows) != len(wanted) or len(rows) < 2:
        raise DataError(
            f"{len(rows)} inputs and {len(wanted)} targets",
            where="raw baselines",
            fix="give two rows or more",
        )
    if task == "classification" and (wanted.dtype.kind not in "iub" or wanted.ndim != 1 or wanted.min() < 0):
        raise DataError("the targets are no classes", where="raw baselines", fix="give integers from 0")
    if task == "classification" and wanted.min() == wanted.max() and name != "constant":
        raise DataError(
            "all rows have one class", where="raw baselines", fix="give rows of two classes or more"
        )
    if task != "classification" and not np.isfinite(wanted.astype(np.float64)).all():
        raise DataError("the targets hold NaN or Inf", where="raw baselines", fix="drop those rows")
