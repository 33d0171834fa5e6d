"""The source's side, computed once and kept on disk: features, head, and the head made ω-Lipschitz.

The proxy is labelled data of the backbone's own modality. One pass gives u = θ(x) pooled over tokens (for
FA), the body's token means (for the head) and the gradients that recalibration needs; everything is kept
under the hash of model and data, so that every later fit begins at once.
"""

import contextlib
import hashlib
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from transship import data as data_sets
from transship import folders
from transship.atomic import atomic_file, atomic_folder
from transship.data import Dataset
from transship.data.locate import NUMBERS, data_files
from transship.errors import DataError, MissingError, OptionError, OutputError
from transship.numerics import chunks, derive_seed
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.recalibrate import (
    Head,
    Recalibration,
    check_omega,
    head_grams,
    recalibrate,
)

_LOG = logging.getLogger(__name__)
VERSION = 1
HELD_OUT = 0.2  # of the proxy, for the head's error and the choice of ω
CALIBRATION = 96  # proxy items whose gradients are taken
_ARRAYS = "source.safetensors"
_ABOUT = "source.json"


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceSide(Head):
    """What stage 1, the baselines and the bound know of the source: its head, and what that was made from.

    Attributes:
        features: pooled u = θ(x) of the proxy items.
        outputs: token means of the body's states.
        labels: classes of the items.
        label_names: their names.
        held_out: which items neither the head nor its recalibration saw.
        texts: the items themselves, for methods that mix them in; empty when read from a saved model.
        name: of the proxy.
        fingerprint: of backbone and proxy.
    """

    features: Float[Tensor, "items width"]
    outputs: Float[Tensor, "items out"]
    labels: Int[Tensor, " items"]
    label_names: tuple[str, ...]
    held_out: Bool[Tensor, " items"]
    texts: Any = field(default=(), repr=False)
    name: str = ""
    fingerprint: str = ""

    @property
    def classes(self) -> int:
        """|Z|."""
        return len(self.bias)

    def probabilities(self, states: Float[Tensor, "inputs states out"]) -> Float[Tensor, "inputs labels"]:
        """Return p_s(z|u) from the pretrained body's states."""
        weight, bias = self.weight.to(states), self.bias.to(states)
        return torch.nn.functional.linear(states.mean(1), weight, bias).softmax(1)

    def about(self) -> dict[str, Any]:
        """Return everything but the tensors."""
        own = {"label_names": list(self.label_names), "name": self.name, "fingerprint": self.fingerprint}
        return {**own, **super().about()}


def open_source(
    backbone: Backbone,
    proxy: Any,
    *,
    items: int,
    omega: float | str,
    cache: Path | None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> SourceSide:
    """Return the source for a proxy: from the cache, or by one pass over it that fills the cache.

    The draw of the items, the split and the calibration depend on no seed, so that all fits share one cache;
    `omega` is a number, or "grid" for the smallest that costs less than a point of accuracy.
    """
    data = checked_proxy(proxy, backbone)
    drawn = data.per_class(max(5, items // len(np.unique(np.asarray(data.labels)))), 0, allow_fewer=True)
    text = f"transship-source-{VERSION} {drawn.fingerprint()} {CALIBRATION} {backbone.fingerprint}"
    identity = hashlib.sha256(text.encode()).hexdigest()
    folder = (cache or folders.cache("adapt")) / identity[:32]
    kept = _load(folder)
    _LOG.info("features of %s: %s %s", data.name, "kept in" if kept else "computed, then kept in", folder)
    # a home that cannot be written to costs later fits their time; a cache that was named has to be there
    optional = contextlib.suppress(OSError, OutputError) if cache is None else contextlib.nullcontext()
    if kept is None:
        arrays = _compute(backbone, drawn, watch)
        with optional:
            _keep(folder, arrays)
        kept = _read(arrays)  # as every later fit reads it, to the byte
    features, evidence = kept
    head, cached = _head_of(folder, evidence, omega)
    if not cached:
        with optional:
            _keep_head(folder, head, omega)
    return SourceSide(
        **vars(head),
        features=features,
        outputs=evidence.outputs,
        labels=evidence.labels,
        label_names=data.label_names,
        held_out=evidence.held_out,
        texts=drawn.inputs,
        name=data.name,
        fingerprint=identity,
    )


def _head_of(folder: Path, evidence: Recalibration, omega: float | str) -> tuple[Head, bool]:
    """Return the ω-Lipschitz head, and whether it lay in the cache too: the grid takes seconds."""
    check_omega(omega)
    try:
        with safe_open(folder / f"head-{omega}.safetensors", "pt") as tensors:
            facts = json.loads(tensors.metadata()["head"])
            arrays = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - no mapping
        return Head.restore(arrays, facts), True
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return recalibrate(evidence, omega=omega), False


def _keep_head(folder: Path, head: Head, omega: float | str) -> None:
    with atomic_file(folder / f"head-{omega}.safetensors", force=True, sync=False) as draft:
        save_file(head.arrays(), draft, {"head": json.dumps(head.about())})


def _read_proxy(proxy: Any, backbone: Backbone) -> Dataset:
    """Return the proxy data.

    As given, by reference, or for `auto` the WordNet supersenses of a text backbone.
    """
    if isinstance(proxy, Dataset):
        return proxy
    if proxy is None:
        raise OptionError(
            "the method needs labelled data of the backbone's own modality, and there is none",
            where="proxy",
            fix="name one, or choose a method without (nft, warm, frozen, linear, scratch)",
        )
    if backbone.reads == "audio":
        raise OptionError(
            f"no source of sound can be read for {backbone.name}",
            where="proxy",
            fix="choose a method without a source (nft, warm, frozen, linear, scratch)",
        )
    kind: Any = "text" if backbone.reads == "text" else "image"
    if proxy != "auto":
        files = data_files(proxy)
        if kind == "image" and files and files[0].suffix.lower() in NUMBERS:
            kind = "array"  # pictures kept as numbers
        return data_sets.load(proxy, kind)
    if kind == "text":
        with contextlib.suppress(MissingError):  # damaged data is an error of its own
            return data_sets.load("wordnet_supersense", "text", split="train")
    raise MissingError(
        f"{backbone.name} carries no head that names its source's labels, and no proxy for one was given",
        where="proxy",
        fix=f"name labelled {'texts' if kind == 'text' else 'images'} (any classes) with --proxy, "
        "or choose a method without (nft, warm)",
    )


def checked_proxy(proxy: Any, backbone: Backbone) -> Dataset:
    """Return the proxy data once it is known to suit: the backbone's modality, two classes or more."""
    data = _read_proxy(proxy, backbone)
    wanted = "text" if backbone.reads == "text" else "image"
    if data.kind != wanted and not (wanted == "image" and data.kind == "array"):
        raise DataError(
            f"it holds {data.kind} and {backbone.name} reads {wanted}",
            where=f"proxy {data.name}",
            fix=f"give labelled {wanted} data",
        )
    if data.labels is None or not data.label_names:
        raise DataError("it has no class labels", where=f"proxy {data.name}", fix="name its label column")
    values, counts = np.unique(data.labels, return_counts=True)
    if len(values) < 2:
        raise DataError(
            f"all its rows are of one class ({data.label_names[int(values[0])]})",
            where=f"proxy {data.name}",
            fix="give two classes or more",
        )
    if counts.min() < 5:
        rare = data.label_names[int(values[counts.argmin()])]
        raise DataError(
            f"class '{rare}' has {counts.min()} rows",
            where=f"proxy {data.name}",
            fix="give five of each or more",
        )
    return data


def _compute(backbone: Backbone, data: Dataset, watch: Callable[[int, int], None]) -> bytes:
    order = sorted(range(len(data)), key=lambda row: backbone.loaded.length(data.inputs[row]))
    features = torch.empty(len(data), backbone.theta.width)
    outputs = torch.empty(len(data), backbone.width_out)
    watch(0, len(order))
    for part in chunks(len(order), 64):
        rows = order[part]
        tokens, mask, states = backbone.source_pass([data.inputs[row] for row in rows])
        features[rows] = _masked_mean(tokens, mask).float().cpu()
        grid_states = mask if states.shape[1] == mask.shape[1] else None
        outputs[rows] = _masked_mean(states, grid_states).float().cpu()
        watch(part.stop, len(order))
    labels = torch.from_numpy(np.asarray(data.labels, dtype=np.int64))
    _, labels = torch.unique(labels, return_inverse=True)
    held_out = _held_out(labels)
    weight, bias = _probe(outputs[~held_out], labels[~held_out], outputs[held_out], labels[held_out])
    used = _calibration_items(labels, held_out)
    grams = head_grams(backbone, backbone.body(), [data.inputs[int(row)] for row in used], weight)
    evidence = Recalibration(outputs, labels, held_out, weight, bias, used, grams)
    tensors = {"features": features, **evidence.tensors()}
    return save({name: value.contiguous() for name, value in tensors.items()})


def _masked_mean(tokens: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return tokens.mean(1)
    weights = mask.to(tokens.dtype)
    return torch.einsum("itw,it->iw", tokens, weights) / weights.sum(1, keepdim=True)


def _held_out(labels: Tensor) -> Tensor:
    """Return a mask that holds out a fifth of every class, at least one item."""
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for value in torch.unique(labels).tolist():
        rows = (labels == value).nonzero().flatten().numpy()
        drawn = np.random.default_rng(derive_seed(0, "held-out", value)).permutation(rows)
        mask[drawn[: max(1, round(HELD_OUT * len(rows)))]] = True
    return mask


def _calibration_items(labels: Tensor, held_out: Tensor) -> Tensor:
    rows = (~held_out).nonzero().flatten().numpy()
    drawn = np.random.default_rng(derive_seed(0, "calibration")).permutation(rows)[:CALIBRATION]
    return torch.from_numpy(np.sort(drawn))


def _probe(x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a multinomial logistic regression.

    Its strength is chosen on held-out items.
    """
    best: tuple[float, Any] | None = None
    for strength in (0.1, 1.0, 10.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # held-out items judge it as it is
            model = LogisticRegression(C=strength, max_iter=200).fit(x.double().numpy(), y.numpy())
        logits = torch.from_numpy(model.decision_function(x_held.double().numpy()))
        if logits.dim() == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], 1)
        loss = float(torch.nn.functional.cross_entropy(logits, y_held))
        if best is None or loss < best[0]:
            best = (loss, model)
    assert best is not None
    weight, bias = torch.from_numpy(best[1].coef_).float(), torch.from_numpy(best[1].intercept_).float()
    if len(bias) == 1:  # two classes: scikit-learn keeps one row
        weight, bias = (
            torch.cat([torch.zeros_like(weight), weight]),
            torch.cat([torch.zeros_like(bias), bias]),
        )
    return weight, bias


def _keep(folder: Path, arrays: bytes) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder, force=True, private=True) as place:
        (place / _ARRAYS).write_bytes(arrays)
        (place / _ABOUT).write_text(json.dumps({"version": VERSION}), encoding="utf-8")


def _read(arrays: bytes) -> tuple[Tensor, Recalibration]:
    tensors = load(arrays)
    return tensors.pop("features"), Recalibration(**tensors)


def _load(folder: Path) -> tuple[Tensor, Recalibration] | None:
    try:
        # from bytes, not from a map of the file: another process may put a new one in its place
        return _read((folder / _ARRAYS).read_bytes())
    except (OSError, SafetensorError, KeyError, TypeError):
        return None
