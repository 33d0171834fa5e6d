"""What a transport gives: the moved update at a strength, a head where one was carried, and how it was
made.
"""

import copy
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from transship.activations import parameter_names
from transship.activations.readout import Readout
from transship.atomic import atomic_folder
from transship.checkpoints import Update
from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.card import Input, ModelCard, as_json
from transship.checkpoints.write import TensorPlan, applied, write_checkpoint
from transship.errors import OptionError, OutputError
from transship.report import html
from transship.targets import require_apart
from transship.verbs.transport.account import Account, Candidate, Choice
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.move import Moved
from transship.verbs.transport.plan import Plan
from transship.verbs.transport.protocol import TransportMethod


@dataclass(frozen=True, eq=False)
class Result(Account):
    """A transported fine-tune: the moved update at a strength, ready to be looked at and written.

    Its attributes are those of its account; `summary` is what `--json` prints.
    """

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
        module = copy.deepcopy(self.target.model.model)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            if self.strength != 0.0:
                for name, change in self.moved.dense.items():
                    parameters[name].add_(self.strength * change.to(parameters[name]))
            if self.head is not None:
                _install(module, Readout(self.target.model), self.head)
        return module

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
        checkpoints = {role: model.checkpoint for role, model in read.items()}
        return {role: None if read is None else read.folder for role, read in checkpoints.items()}

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

    def report(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a page to look at."""
        require_apart(path, self._folders())
        return html.write(self.page(), path, force=force)

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
        replaced = []
        for plan in plans:
            if plan.name in values:
                value = values[plan.name]
                plan = plan._replace(shape=tuple(value.shape), producer=_keeping(value))
            replaced.append(plan)
        return replaced, _relabelled(config, self.head, self.head.weight.shape[0]), {}

    def _save_module(self, folder: Path, force: bool) -> Path:
        module, readout = self.model(), Readout(self.target.model)
        files: dict[str, str | bytes] = dict(self._card("transformers").files())
        if self.head is not None and readout.head is None:  # a bare module has no place for it
            files |= _beside(self.head, readout)
        with atomic_folder(folder, force=force) as place:
            if hasattr(module, "save_pretrained"):
                module.save_pretrained(place)  # type: ignore[operator]
            else:
                tensors = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
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


def result_of(
    plan: Plan,
    method: TransportMethod,
    moved: Moved,
    choice: Choice,
    head: CarriedHead | None,
    candidates: Sequence[Candidate] = (),
    notes: Sequence[str] = (),
) -> Result:
    """Put everything together."""
    settings = plan.settings
    chosen = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    parameters = {
        **{field.name: getattr(method, field.name) for field in dataclasses.fields(method)},  # type: ignore[arg-type]
        **{
            name: value
            for name, value in chosen.items()
            if name not in ("roles", "grid", "strength", "templates") and value != ()
        },
        **({"templates": settings.phrases} if settings.classes else {}),
        "roles": dataclasses.asdict(settings.roles),
        "strength": choice.strength,
    }
    models = (("source", plan.source), ("tuned", plan.tuned), ("target", plan.target))
    inputs = [Input(role, model.name, model.fingerprint()) for role, model in models]
    metrics = {choice.by: choice.score} if choice.curve else {}
    if 0.0 in dict(choice.curve):
        metrics[f"{choice.by}, untouched target"] = dict(choice.curve)[0.0]
    return Result(
        plan.source,
        plan.tuned,
        plan.target,
        method.name,
        parameters,
        moved,
        choice,
        head,
        candidates,
        metrics,
        plan.update.adapter and bool(moved.factors),
        [*notes, *_asides(plan, moved, choice, head)],
        [*inputs, Input("data", plan.draws.name, plan.draws.fingerprint)],
    )


def _asides(plan: Plan, moved: Moved, choice: Choice, head: CarriedHead | None) -> Iterator[str]:
    """Yield what a user should know beside the figures."""
    if isinstance(plan.labels, str) and choice.curve:
        yield f"the labels of {plan.draws.name} chose nothing: {plan.labels}"
    if plan.update.adapter and (head is not None or not moved.factors):
        why = "of its new head" if head is not None else "what was moved has no low rank"
        yield f"the adapter becomes a whole model, because {why}"


def _beside(head: CarriedHead, readout: Readout) -> dict[str, str | bytes]:
    """Return the files of a head that the model itself has no place for."""
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
    relabelled = {
        **config,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if "num_labels" in config:
        relabelled["num_labels"] = outputs
    return relabelled


def _keeping(value: Tensor) -> Callable[[], Tensor]:
    return lambda: value


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
