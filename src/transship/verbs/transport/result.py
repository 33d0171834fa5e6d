"""What a transport gives: the moved update at a strength, a head where one was carried, and how it was
made.
"""

import copy
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import parameter_names
from transship.activations.readout import Readout
from transship.atomic import atomic_folder
from transship.checkpoints import Update
from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.card import Input, ModelCard, as_json
from transship.checkpoints.write import TensorPlan, applied, write_checkpoint
from transship.errors import OptionError, OutputError
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.judge import Choice
from transship.verbs.transport.models import Participant
from transship.verbs.transport.moved import Moved
from transship.verbs.transport.scores import Measured


@dataclass(frozen=True)
class Candidate:
    """One row of the comparison that `auto` makes."""

    method: str
    strength: float
    agreement: float
    validation: float | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """A transported fine-tune.

    Attributes:
        source: the base of the fine-tune.
        tuned: the fine-tune.
        target: the model that it moved to.
        method: the method's name.
        parameters: everything that was chosen.
        moved: the target's update at strength 1, with what was moved and what was not.
        choice: the strength and how it was found.
        head: a carried head, or None.
        candidates: what `auto` compared.
        compared_on: which inputs it compared them on.
        metrics: measured quality by name.
        adapter: whether the update came, and is saved, as an adapter.
        notes: sentences for the user.
        inputs: hashes of everything that went in.
        measured: what was measured on test rows and on the original domain, where such were given.
    """

    source: Participant
    tuned: Participant
    target: Participant
    method: str
    parameters: Mapping[str, Any]
    moved: Moved
    choice: Choice
    head: CarriedHead | None = None
    candidates: Sequence[Candidate] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    adapter: bool = False
    notes: Sequence[str] = ()
    inputs: Sequence[Input] = ()
    measured: Measured | None = None
    compared_on: str = ""

    @property
    def strength(self) -> float:
        """α of θ_B + α τ_B."""
        return self.choice.strength

    def at(self, strength: float) -> "Result":
        """Return the same transport at another strength; nothing is collected anew. A carried head stays as
        it is; what was measured at this strength is not said of another.
        """
        if not math.isfinite(strength):
            raise OptionError(f"the strength is {strength}", where="strength", fix="give a finite number")
        choice = Choice(float(strength), (), "given")
        return dataclasses.replace(self, choice=choice, metrics={}, measured=None)

    def model(self) -> nn.Module:
        """Return a copy of the target with the update added and the head in place."""
        made = copy.deepcopy(self.target.model.model)
        parameters = dict(made.named_parameters())
        with torch.no_grad():
            if self.strength != 0.0:
                for name, change in self.moved.dense.items():
                    parameters[name].add_(self.strength * change.to(parameters[name]))
            if self.head is not None:
                _install(made, Readout(self.target.model), self.head)
        return made

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the result: an adapter where the update came as one, otherwise the whole target."""
        require_apart(folder, self._folders())
        if self.target.checkpoint is None:
            return self._save_module(Path(folder), force)
        if self.adapter and self.head is None:
            update = self.update() if self.strength != 0.0 else self._zero_adapter()
            return write_adapter(folder, update, dense="save", card=self._card("peft"), force=force)
        return self._save_checkpoint(Path(folder), force)

    def _folders(self) -> dict[str, Any]:
        read = {"SOURCE": self.source, "TUNED": self.tuned, "TARGET": self.target}
        return {role: None if one.checkpoint is None else one.checkpoint.folder for role, one in read.items()}

    def update(self) -> Update:
        """Return strength × τ_B under the names of the target's checkpoint."""
        target = self.target.checkpoint
        if target is None:
            raise OutputError("the target was given as a module", where=self.target.name, fix="use model()")
        names = parameter_names(self.target.model, target)
        arrays: dict[str, Any] = {}
        if self.strength != 0.0:
            for name, change in self.moved.dense.items():
                if name in self.moved.factors and self.adapter:
                    up, down = self.moved.factors[name]
                    arrays[names[name]] = (up.numpy(), down.numpy())
                else:
                    arrays[names[name]] = change.numpy()
        return Update.from_arrays(arrays, base=target) * float(self.strength if arrays else 1.0)

    def _zero_adapter(self) -> Update:
        """Return an update of the moved factors' ranks that adds nothing: an adapter must hold some."""
        target = self.target.checkpoint
        assert target is not None
        names = parameter_names(self.target.model, target)
        arrays: dict[str, Any] = {
            names[name]: (torch.zeros_like(up).numpy(), down.numpy())
            for name, (up, down) in self.moved.factors.items()
        }
        return Update.from_arrays(arrays, base=target)

    def summary(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "source": self.source.name,
            "tuned": self.tuned.name,
            "target": self.target.name,
            "method": self.method,
            "parameters": dict(self.parameters),
            "strength": self.strength,
            "strength_by": self.choice.by,
            "curve": [list(point) for point in self.choice.curve],
            "candidates": [dataclasses.asdict(one) for one in self.candidates],
            "compared_on": self.compared_on,
            "metrics": dict(self.metrics),
            "measured": None if self.measured is None else self.measured.summary(),
            "norm_kept": self.moved.norm_after / self.moved.norm_before if self.moved.norm_before else None,
            "layers": [dataclasses.asdict(layer) | {"kept": layer.kept} for layer in self.moved.layers],
            "not_moved": [
                dataclasses.asdict(one) | {"norm": None if one.norm != one.norm else one.norm}
                for one in self.moved.left
            ],
            "head": None
            if self.head is None
            else {"inputs": self.head.inputs, "kept": self.head.kept, **self.head.details},
            "notes": list(self.notes),
        }

    def report(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a page to look at."""
        from transship.report import html
        from transship.verbs.transport.page import page

        require_apart(path, self._folders())
        return html.write(page(self), path, force=force)

    def _save_checkpoint(self, folder: Path, force: bool) -> Path:
        target = self.target.checkpoint
        assert target is not None
        plans = list(applied(target, self.update()))
        config = dict(target.config)
        files: dict[str, str | bytes] = {}
        if self.head is not None:
            plans, config, files = self._with_head(plans, config)
        return write_checkpoint(
            folder,
            plans,
            like=target,
            config=config,
            files=files,
            card=self._card("transformers"),
            force=force,
        )

    def _with_head(
        self, plans: list[TensorPlan], config: dict[str, Any]
    ) -> tuple[list[TensorPlan], dict[str, Any], dict[str, str | bytes]]:
        """Return plans and config with the carried head in the target's own Linear, or beside a bare
        model.
        """
        assert self.head is not None
        assert self.target.checkpoint is not None
        readout = Readout(self.target.model)
        names = parameter_names(self.target.model, self.target.checkpoint)
        if readout.head is None or readout.head.weight not in names:  # a bare model, or a zero-shot head
            return plans, config, _beside(self.head, readout)
        values = {names[readout.head.weight]: self.head.weight}
        if readout.head.bias is not None:
            values[names[readout.head.bias]] = self.head.bias
        made = []
        for plan in plans:
            if plan.name in values:
                value = values[plan.name]
                plan = plan._replace(shape=tuple(value.shape), producer=_keeping(value))
            made.append(plan)
        return made, _relabelled(config, self.head, self.head.weight.shape[0]), {}

    def _save_module(self, folder: Path, force: bool) -> Path:
        from safetensors.torch import save_file

        made, readout = self.model(), Readout(self.target.model)
        files: dict[str, str | bytes] = dict(self._card("transformers").files())
        if self.head is not None and readout.head is None:  # a bare module has no place for it
            files |= _beside(self.head, readout)
        with atomic_folder(folder, force=force) as place:
            if hasattr(made, "save_pretrained"):
                made.save_pretrained(place)  # type: ignore[operator]
            else:
                tensors = {name: tensor.detach().clone() for name, tensor in made.state_dict().items()}
                save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
            for name, content in files.items():
                (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    def _card(self, library: str) -> ModelCard:
        return ModelCard(
            title=f"{self.tuned.name} on {self.target.name}",
            verb="transport",
            method=self.method,
            summary=f"What {self.tuned.name} learned on {self.source.name}, moved to {self.target.name} "
            f"at strength {self.strength:g}.",
            parameters=json.loads(json.dumps(dict(self.parameters), default=str)),
            inputs=tuple(self.inputs),
            metrics={**self.metrics, **({} if self.measured is None else self.measured.metrics())},
            library=library,
        )


def _beside(head: CarriedHead, readout: Readout) -> dict[str, str | bytes]:
    """Return the files of a head that the model itself has no place for."""
    from safetensors.torch import save

    about = {
        "task": head.task,
        "labels": list(head.label_names),
        "pooling": readout.pooling if readout.head is None else "image embedding, unit length",
    }
    arrays = {"weight": head.weight, "bias": head.bias}
    return {"head.safetensors": save(arrays), "head.json": as_json(about)}


def _install(model: nn.Module, readout: Readout, head: CarriedHead) -> None:
    """Put a carried head into a module's own Linear."""
    if readout.head is None:
        return
    linear = model.get_submodule(readout.head.path)
    assert isinstance(linear, nn.Linear)
    linear.weight = nn.Parameter(head.weight.to(linear.weight))
    if linear.bias is not None:
        linear.bias = nn.Parameter(head.bias.to(linear.weight))
    linear.out_features = head.weight.shape[0]
    config = getattr(model, "config", None)
    if config is not None and head.label_names and len(head.label_names) == linear.out_features:
        config.id2label = dict(enumerate(head.label_names))
        config.label2id = {name: number for number, name in enumerate(head.label_names)}


def _relabelled(config: dict[str, Any], head: CarriedHead, outputs: int) -> dict[str, Any]:
    names = (
        head.label_names
        if len(head.label_names) == outputs
        else [f"LABEL_{number}" for number in range(outputs)]
    )
    made = {
        **config,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if "num_labels" in config:
        made["num_labels"] = outputs
    return made


def _keeping(value: Tensor) -> Callable[[], Tensor]:
    return lambda: value


def require_apart(out: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse an output that is an input, holds one, or is a file of one; `--force` does not help.

    Args:
        out: the folder or file that is to be written.
        inputs: what is read, by what the user calls it; what is no local path is passed over.
    """
    final = _real(out)
    for role, given in inputs.items():
        place = None if given is None else _real(given)
        if place is None or not place.exists():
            continue
        relation = None
        if final == place:
            relation = "is"
        elif final in place.parents:
            relation = "holds"
        elif place in final.parents and final.is_file():
            relation = "is a file of"
        if relation is not None:
            raise OutputError(
                f"it {relation} {role} ({given}), which is never written over",
                where=str(out),
                fix="choose another name",
            )


def require_folder(given: Any, option: str) -> None:
    """Refuse a folder that cannot be made or written to; nothing is created."""
    final = _real(given)
    above = next(place for place in (final, *final.parents) if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(
            f"{above} is no folder that can be written to",
            where=option,
            fix=f"name another folder with {option}",
        )


def _real(given: Any) -> Path:
    return Path(os.path.realpath(Path(given).expanduser()))
