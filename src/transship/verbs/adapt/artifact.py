"""An adapted model at rest: a folder of safetensors and JSON, no pickle.

`model.safetensors` holds φ, body and head; `adapted.json` says how inputs and outputs are read and how the
fit went; `config.json` is the body's; `source.safetensors` keeps the source's side for the bound;
`base.safetensors` the raw model under the network. `README.md` and `transship.json` are the card.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transship import __version__
from transship.atomic import atomic_folder
from transship.checkpoints.card import Input, ModelCard
from transship.errors import DataError
from transship.verbs.adapt.adapted import Adapted
from transship.verbs.adapt.estimator import Recraft
from transship.verbs.adapt.model.backbone import body_from_config
from transship.verbs.adapt.model.embedders import Embedder, Shape
from transship.verbs.adapt.model.heads import HeadShape
from transship.verbs.adapt.model.network import Network
from transship.verbs.adapt.raw.base import Base
from transship.verbs.adapt.raw.baselines import RawModel
from transship.verbs.adapt.rows.inputs import Inputs
from transship.verbs.adapt.rows.targets import Targets
from transship.verbs.adapt.settings import Settings
from transship.verbs.adapt.source.model import Source

FORMAT, VERSION = "transship.adapted", 1
WEIGHTS, ABOUT, CONFIG, SOURCE, BASE = (
    "model.safetensors",
    "adapted.json",
    "config.json",
    "source.safetensors",
    "base.safetensors",
)


def save_adapted(adapted: Adapted, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the model, whole or not at all; the same model gives the same bytes."""
    from safetensors.torch import save

    network = adapted.network
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    arrays = {"inputs.mean": adapted.inputs.mean, "inputs.std": adapted.inputs.std}
    arrays |= {"targets.mean": adapted.targets.mean, "targets.std": adapted.targets.std}
    arrays |= {f"codes.{name}": value for name, value in adapted.targets.codes.items()}
    weights |= {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
    data = save({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()})
    document = {
        "format": FORMAT,
        "version": VERSION,
        "transship": __version__,
        "weights": hashlib.sha256(data).hexdigest(),
        "inputs": adapted.inputs.to_dict(),
        "targets": _targets(adapted.targets),
        "embedder": network.embedder.shape.to_dict(),
        "epsilon": getattr(network.embedder.norm, "eps", 1e-5),
        "head": adapted.head_shape.to_dict(),
        "about": _timeless(adapted.about),
        "source": None if adapted.source is None else adapted.source.about(),
        "base": adapted.base is not None,
    }
    config: Any = network.body.model.config
    with atomic_folder(folder, force=force) as place:
        (place / WEIGHTS).write_bytes(data)
        (place / ABOUT).write_text(json.dumps(document, indent=1, default=_number), encoding="utf-8")
        config.to_json_file(place / CONFIG, use_diff=False)
        if adapted.source is not None:
            (place / SOURCE).write_bytes(save(adapted.source.arrays()))
        if adapted.base is not None:
            state = adapted.base.model.state()
            tensors = {name: torch.from_numpy(np.array(value)) for name, value in sorted(state.items())}
            (place / BASE).write_bytes(save(tensors))
        for name, text in _card(adapted).files().items():
            (place / name).write_text(text, encoding="utf-8")
    return Path(folder)


def load_adapted(folder: str | os.PathLike[str]) -> Recraft:
    """Read what `save_adapted` wrote, as a fitted estimator.

    What is cut short or changed is one clear error.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    place = Path(folder)
    document = read_document(place)
    try:
        data = (place / WEIGHTS).read_bytes()
        config = json.loads((place / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _incomplete(place, str(error)) from error
    if hashlib.sha256(data).hexdigest() != document["weights"]:
        raise _incomplete(place, "its weights do not match their hash")
    try:
        weights = load(data)
        adapted = _rebuild(document, weights, config, place)
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise _incomplete(place, f"{type(error).__name__}: {error}") from error
    known = {name: value for name, value in document["about"]["settings"].items() if hasattr(Settings, name)}
    model = Recraft(**known)
    return model._take(adapted)


def saved_kind(folder: str | os.PathLike[str]) -> str:
    """Return the kind of data that a saved model reads; no weights are read."""
    inputs = read_document(Path(folder))["inputs"]
    return "tabular" if inputs["tabular"] else str(inputs["kind"])


def _rebuild(
    document: dict[str, Any], weights: dict[str, Any], config: dict[str, Any], place: Path
) -> Adapted:
    from safetensors.torch import load
    from transformers import AutoConfig

    def array(name: str) -> Any:
        return weights[name].numpy()

    inputs = Inputs.from_dict(document["inputs"], array("inputs.mean"), array("inputs.std"))
    codes = {name[6:]: value.numpy() for name, value in weights.items() if name.startswith("codes.")}
    found = document["targets"]
    classes = None
    if found["classes"] is not None:
        classes = np.array(found["classes"], dtype=np.dtype(found["dtype"]))
    targets = Targets(
        found["task"],
        classes,
        tuple(found["shape"]),
        array("targets.mean"),
        array("targets.std"),
        codes,
        found["plane"],
    )
    kind = config.pop("model_type")
    body = body_from_config(AutoConfig.for_model(kind, **config), str(place))
    head_shape = HeadShape.from_dict(document["head"])
    embedder = Embedder(Shape.from_dict(document["embedder"]), document["epsilon"])
    network = Network(embedder, body, head_shape.build())
    network.load_state_dict(
        {name[8:]: value for name, value in weights.items() if name.startswith("network.")}, strict=True
    )
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    source = None
    if document["source"] is not None:
        source = Source.restore(load((place / SOURCE).read_bytes()), document["source"])
    base = None
    if document["base"]:
        state = {name: value.numpy() for name, value in load((place / BASE).read_bytes()).items()}
        base = Base(RawModel.from_state(state), targets)
    return Adapted(inputs, targets, network, head_shape, source, document["about"], base=base)


def _targets(targets: Targets) -> dict[str, Any]:
    classes = targets.classes
    return {
        "task": targets.task,
        "classes": None if classes is None else classes.tolist(),
        "dtype": None if classes is None else classes.dtype.str,
        "shape": list(targets.shape),
        "plane": targets.plane,
    }


def _timeless(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts without seconds, which differ from run to run."""
    kept = dict(about)
    for name in ("stage1", "history"):
        kept[name] = [{key: value for key, value in row.items() if key != "seconds"} for row in about[name]]
    kept["baselines"] = [
        {key: value for key, value in row.items() if key != "seconds"} for row in about.get("baselines", [])
    ]
    return kept


def _card(adapted: Adapted) -> ModelCard:
    about = adapted.about
    shown = about["validation"][about["metric"]]
    return ModelCard(
        title=f"{about['backbone']} adapted to {about['task']}",
        verb="adapt",
        method=about["method"],
        summary=_sentence(about, shown),
        parameters={name: value for name, value in about["settings"].items() if value is not None},
        inputs=[
            Input("backbone", str(about["backbone"]), about.get("backbone_hash", "")),
            Input("data", "rows and targets", about["data"]),
            *([Input("proxy", adapted.source.name, adapted.source.fingerprint)] if adapted.source else []),
        ],
        metrics={f"validation {name}": value for name, value in about["validation"].items()},
        seed=about["seed"],
    )


def _sentence(about: Mapping[str, Any], shown: float) -> str:
    found = (
        f"Validation {about['metric']} {shown:.4f} on {about['rows']['validation']} rows that did not train"
    )
    return f"{found}; {about['advice']}." if about.get("advice") else f"{found}."


def read_document(place: Path) -> dict[str, Any]:
    """Return what the folder says of its model; no weights are read."""
    try:
        document = json.loads((place / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"holds no {ABOUT}", where=str(place), fix="give the folder that `transship adapt fit` wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise _incomplete(place, f"{ABOUT} is unreadable") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError("is no adapted model", where=str(place), fix="give a folder of `transship adapt fit`")
    if not isinstance(document.get("version"), int) or document["version"] > VERSION:
        raise DataError(
            f"has version {document.get('version')}, and this transship reads up to {VERSION}",
            where=str(place),
            fix="update transship, or fit again",
        )
    return document


def _incomplete(place: Path, why: str) -> DataError:
    return DataError(
        f"is cut short or was changed ({why[:160]})", where=str(place), fix="fit the model again"
    )


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


__all__ = ["load_adapted", "save_adapted"]
