"""An adapted model, in use and at rest: a folder of safetensors and JSON, no pickle.

`model.safetensors` holds φ, body and head; `adapted.json` says how inputs and outputs are read and how the
fit went; `config.json` is the body's; `source.safetensors` keeps the source's side for the bound;
`base.safetensors` the raw model under the network; `raw.safetensors` all raw models. `README.md` and
`transship.json` are the card.
"""

import functools
import hashlib
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import AutoConfig

from transship import __version__
from transship.atomic import atomic_folder
from transship.checkpoints.card import Input, ModelCard
from transship.checkpoints.claims import check_code, check_sizes
from transship.errors import DataError, OptionError
from transship.numerics import chunks
from transship.outside import complete, read_json
from transship.registry import unknown
from transship.types import Array
from transship.verbs.adapt.model.backbone import Backbone, Body, body_from_config, open_backbone
from transship.verbs.adapt.model.embedder import Embedder, Shape
from transship.verbs.adapt.model.network import FORWARD_ROWS, AdaptedNetwork, HeadShape, pooled
from transship.verbs.adapt.model.source import SourceSide
from transship.verbs.adapt.raw.models import BaseModel, RawModel
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.metrics import evaluate
from transship.verbs.adapt.rows.targets import Targets

FORMAT, VERSION = "transship.adapted", 1
WEIGHTS, ABOUT, CONFIG = "model.safetensors", "adapted.json", "config.json"
SOURCE, BASE, RAW = "source.safetensors", "base.safetensors", "raw.safetensors"
ADAPTED = "adapted"  # what the network is called among the models that may answer


@dataclass(frozen=True, eq=False)
class Adapted:
    """What a fit makes: how inputs are read, the network, how outputs are read, and what it was made from.

    Attributes:
        inputs: how raw inputs become tensors.
        targets: how outputs become predictions.
        network: φ, body, head.
        head_shape: what the head is built from.
        source: the source's features and head, or None.
        about: everything that is known: backbone, task, metric, settings, data hash, validation, log,
            history.
        seconds: CPU seconds of the parts of the fit; not saved, since they differ from run to run.
        backbone: the pretrained model, where it is at hand.
        base: the raw model that the network corrects, or None.
        snapshots: pooled φ(x) of some training rows during stage 1 and after stage 2, for the report; not
            saved.
        forward_rows: how many rows run at once.
        raw: the raw models by name, best on the validation rows first; empty when nobody asked.
    """

    inputs: Inputs
    targets: Targets
    network: AdaptedNetwork
    head_shape: HeadShape
    source: SourceSide | None
    about: Mapping[str, Any]
    seconds: Mapping[str, float] = field(default_factory=dict)
    backbone: Backbone | None = None
    base: BaseModel | None = None
    snapshots: Mapping[str, Tensor] = field(default_factory=dict)
    forward_rows: int = FORWARD_ROWS
    raw: Mapping[str, RawModel] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return next(self.network.embedder.parameters()).device

    @cached_property
    def pristine(self) -> Body:
        """The pretrained body; for a model from disk the backbone is opened anew."""
        backbone = self.backbone or open_backbone(str(self.about["backbone"]))
        return backbone.body().to(self.device)

    def outputs(self, values: Any) -> Array:
        """Return outputs for raw inputs: the network's, on top of the base's where there is one."""
        outputs = self._over(values, self.network)
        return outputs if self.base is None else outputs + self.base.outputs(self.inputs.transform(values))

    def named(self, use: str) -> str:
        """Return which model answers: `adapted`, a raw model by name, or the one that was advised (auto)."""
        if use == "auto":
            return str(self.about.get("advised", ADAPTED))
        if use not in (ADAPTED, *self.raw):
            raise unknown(use, (ADAPTED, *self.raw), kind="model in this folder", where="--use")
        return use

    def outputs_of(self, name: str, values: Any) -> Array:
        """Return outputs for raw inputs of the adapted model, or of a raw one in the same units."""
        if name == ADAPTED:
            return self.outputs(values)
        return BaseModel(self.raw[name], self.targets).outputs(self.inputs.transform(values))

    def embedded(self, values: Any) -> Array:
        """Return token means of φ(x): where features of source and target are compared."""
        return self._over(values, lambda batch: pooled(self.network.embedder(batch)))

    def features(self, values: Any) -> Array:
        """Return token means of the adapted body's states."""
        return self._over(values, lambda batch: self.network.states(self.network.embedder(batch)).mean(1))

    def source_probabilities(self, values: Any) -> Array:
        """Return p_s(z|φ(x)) through the pretrained body and the source's head."""
        source, grid = self._source(), self.network.embedder.shape.grid
        return self._over(
            values,
            lambda batch: source.probabilities(self.pristine(self.network.embedder(batch), None, grid)),
        )

    def source_gradient_norms(self, values: Any, labels: Any = None) -> Array:
        """Return ‖∇_u ℓ_s‖ per row at u = φ(x), over all tokens.

        Without labels ℓ_s is the entropy of p_s: the source's conditional is unknown there.
        """
        source, grid = self._source(), self.network.embedder.shape.grid
        rows = torch.from_numpy(self.inputs.transform(values))
        norms = []
        for part in chunks(len(rows), self.forward_rows):
            tokens = self.network.embedder(rows[part].to(self.device)).detach().requires_grad_(True)
            given = source.probabilities(self.pristine(tokens, None, grid)).clamp_min(1e-12)
            if labels is None:
                loss = -(given * given.log()).sum()
            else:
                wanted = torch.as_tensor(np.asarray(labels)[part]).long().to(given.device)
                loss = -given.gather(1, wanted[:, None]).log().sum()
            (slope,) = torch.autograd.grad(loss, tokens)
            norms.append(slope.flatten(1).norm(dim=1).cpu())
        return np.asarray(torch.cat(norms).numpy())

    def evaluate(self, values: Any, truth: Any) -> dict[str, float]:
        """Return every metric of the task on whole sets."""
        return self.measured(self.outputs(values), truth)

    def measured(self, outputs: Array, truth: Any) -> dict[str, float]:
        """Return every metric of the task for outputs that are there."""
        targets = self.targets
        wanted = targets.truth(truth)
        return evaluate(targets.task, wanted, targets.prediction(outputs), targets.scores(outputs))

    def _source(self) -> SourceSide:
        if self.source is None:
            method = self.about["method"]
            raise OptionError(
                f"the method {method} has no source", where="source", fix="fit with recraft or fa"
            )
        return self.source

    @torch.no_grad()
    def _over(self, values: Any, function: Callable[[Tensor], Tensor]) -> Array:
        rows = torch.from_numpy(self.inputs.transform(values))
        parts = [
            function(rows[part].to(self.device)).float().cpu()
            for part in chunks(len(rows), self.forward_rows)
        ]
        return np.asarray(torch.cat(parts).numpy())


def save_adapted(adapted: Adapted, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the model, whole or not at all; the same model gives the same bytes."""
    network, targets = adapted.network, adapted.targets
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    arrays = {"inputs.mean": adapted.inputs.mean, "inputs.std": adapted.inputs.std}
    arrays |= {"targets.mean": targets.mean, "targets.std": targets.std}
    arrays |= {f"codes.{name}": value for name, value in targets.codes.items()}
    weights |= {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
    data = save({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()})
    document = {
        "format": FORMAT,
        "version": VERSION,
        "transship": __version__,
        "weights": hashlib.sha256(data).hexdigest(),
        "inputs": adapted.inputs.to_dict(),
        "targets": targets.to_dict(),
        "embedder": network.embedder.shape.to_dict(),
        "epsilon": getattr(network.embedder.norm, "eps", 1e-5),
        "head": adapted.head_shape.to_dict(),
        "about": _timeless(adapted.about),
        "source": None if adapted.source is None else adapted.source.about(),
        "base": adapted.base is not None,
        "raw": list(adapted.raw),
    }
    config: Any = network.body.model.config
    with atomic_folder(folder, force=force) as place:
        (place / WEIGHTS).write_bytes(data)
        (place / ABOUT).write_text(json.dumps(document, indent=1, default=_number), encoding="utf-8")
        config.to_json_file(place / CONFIG, use_diff=False)
        if adapted.source is not None:
            (place / SOURCE).write_bytes(save(adapted.source.arrays()))
        if adapted.base is not None:
            (place / BASE).write_bytes(save(_tensors(adapted.base.model)))
        if adapted.raw:
            models = [_tensors(model, f"{name}/") for name, model in adapted.raw.items()]
            (place / RAW).write_bytes(save(functools.reduce(operator.or_, models)))
        for name, text in _card(adapted).files().items():
            (place / name).write_text(text, encoding="utf-8")
    return Path(folder)


def _tensors(model: RawModel, prefix: str = "") -> dict[str, Tensor]:
    state = sorted(model.state().items())
    return {prefix + name: torch.from_numpy(np.array(value)) for name, value in state}


def _read_raw(file: Path, names: Sequence[str]) -> dict[str, RawModel]:
    arrays = {name: value.numpy() for name, value in load(file.read_bytes()).items()} if names else {}
    return {
        name: RawModel.from_state(
            {
                key.removeprefix(f"{name}/"): array
                for key, array in arrays.items()
                if key.startswith(f"{name}/")
            }
        )
        for name in names
    }


def read_adapted(folder: str | os.PathLike[str]) -> Adapted:
    """Read what `save_adapted` wrote; what is cut short or changed is one clear error."""
    place = Path(folder)
    document = read_document(place)
    try:
        data = (place / WEIGHTS).read_bytes()
    except OSError as error:
        raise _incomplete(place, str(error)) from error
    config = read_json(place / CONFIG, "fit the model again", DataError)
    if hashlib.sha256(data).hexdigest() != document.get("weights"):
        raise _incomplete(place, "its weights do not match their hash")
    with complete(place, "fit the model again"):
        weights = load(data)
        check_sizes(config, [value.shape for value in weights.values()], str(place))
        check_code(config, str(place), trusted=False)
        return _rebuild(document, weights, config, place)


def read_document(place: Path) -> dict[str, Any]:
    """Return what the folder says of its model; no weights are read."""
    if not (place / ABOUT).is_file():
        raise DataError(
            f"holds no {ABOUT}", where=str(place), fix="give the folder that `transship adapt fit` wrote"
        )
    document: dict[str, Any] = read_json(place / ABOUT, "fit the model again", DataError)
    if document.get("format") != FORMAT:
        raise DataError("is no adapted model", where=str(place), fix="give a folder of `transship adapt fit`")
    if not isinstance(document.get("version"), int) or document["version"] > VERSION:
        raise DataError(
            f"has version {document.get('version')}, and this transship reads up to {VERSION}",
            where=str(place),
            fix="update transship, or fit again",
        )
    return document


def _rebuild(
    document: Mapping[str, Any], weights: Mapping[str, Tensor], config: dict[str, Any], place: Path
) -> Adapted:
    arrays = {name: value.numpy() for name, value in weights.items() if not name.startswith("network.")}
    inputs = Inputs.from_dict(document["inputs"], arrays["inputs.mean"], arrays["inputs.std"])
    targets = Targets.from_dict(
        document["targets"],
        arrays["targets.mean"],
        arrays["targets.std"],
        {name.removeprefix("codes."): value for name, value in arrays.items() if name.startswith("codes.")},
    )
    body = body_from_config(AutoConfig.for_model(config.pop("model_type"), **config), str(place))
    head_shape = HeadShape.from_dict(document["head"])
    embedder = Embedder(Shape.from_dict(document["embedder"]), document["epsilon"])
    network = AdaptedNetwork(embedder, body, head_shape.build())
    own = {
        name.removeprefix("network."): value for name, value in weights.items() if name.startswith("network.")
    }
    network.load_state_dict(own, strict=True)
    network.requires_grad_(False)
    source = base = None
    if document["source"] is not None:
        source = SourceSide.restore(load((place / SOURCE).read_bytes()), document["source"])
    if document["base"]:
        state = {name: value.numpy() for name, value in load((place / BASE).read_bytes()).items()}
        base = BaseModel(RawModel.from_state(state), targets)
    raw = _read_raw(place / RAW, document.get("raw", []))
    return Adapted(inputs, targets, network, head_shape, source, document["about"], base=base, raw=raw)


def _timeless(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts without seconds, which differ from run to run."""
    tables = {
        name: [{key: value for key, value in row.items() if key != "seconds"} for row in about[name]]
        for name in ("stage1", "history", "baselines")
    }
    return {**about, **tables}


def _card(adapted: Adapted) -> ModelCard:
    about = adapted.about
    shown = f"{about['metric']} {about['validation'][about['metric']]:.4f}"
    sentence = f"Validation {shown} on {about['rows']['validation']} rows that did not train"
    return ModelCard(
        title=f"{about['backbone']} adapted to {about['task']}",
        verb="adapt",
        method=about["method"],
        summary=f"{sentence}; {about['advice']}." if about.get("advice") else f"{sentence}.",
        parameters={name: value for name, value in about["settings"].items() if value is not None},
        inputs=[
            Input("backbone", str(about["backbone"]), about.get("backbone_hash", "")),
            Input("data", "rows and targets", about["data"]),
            *([Input("proxy", adapted.source.name, adapted.source.fingerprint)] if adapted.source else []),
        ],
        metrics={f"validation {name}": value for name, value in about["validation"].items()}
        | {f"test {about['metric']}, {name}": value for name, value in about.get("test", {}).items()},
        seed=about["seed"],
    )


def _incomplete(place: Path, why: str) -> DataError:
    return DataError(
        f"is cut short or was changed ({why[:160]})", where=str(place), fix="fit the model again"
    )


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
