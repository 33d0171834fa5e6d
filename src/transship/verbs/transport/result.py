"""What a transport gives: the moved update at a strength, a head where one was carried, and how it was
made.
"""

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from transship.activations import parameter_names
from transship.activations.readout import Readout
from transship.atomic import atomic_folder
from transship.checkpoints import Update
from transship.checkpoints.adapters import write_adapter
from transship.checkpoints.card import Input, ModelCard, license_of
from transship.checkpoints.write import applied, write_checkpoint
from transship.errors import OptionError, OutputError
from transship.report import html, short_name
from transship.targets import require_apart
from transship.verbs.transport.account import Account, Candidate, Choice
from transship.verbs.transport.heads import CarriedHead
from transship.verbs.transport.move import Moved
from transship.verbs.transport.placing import beside, copy_of, how_to_load, install, plans_with
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
        return dataclasses.replace(self, choice=choice, metrics={}, measured=None, check=None)

    def model(self) -> nn.Module:
        """Return a copy of the target with the update added and the head in place."""
        module, body = copy_of(self.target, headed=self.head is not None)
        parameters = dict(body.named_parameters())
        with torch.no_grad():
            if self.strength != 0.0:
                for name, change in self.moved.dense.items():
                    if name in parameters:  # a pooler stays behind where the class with a head has none
                        parameters[name].add_(self.strength * change.to(parameters[name]))
            if self.head is not None:
                install(module, self.target, self.head)
        return module

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the result: an adapter where the update came as one, otherwise the whole target."""
        require_apart(folder, self._folders())
        if self.target.checkpoint is None:
            return self._save_module(Path(folder), force)
        if self.adapter and self.head is None:
            if self.does_nothing and not force:
                raise OutputError(
                    "nothing was moved, so this adapter would do nothing",
                    where=str(folder),
                    fix="use TARGET as it is, or pass --force to write it all the same",
                )
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

    @property
    def does_nothing(self) -> bool:
        """Whether what would be written is an adapter that adds nothing."""
        return self.adapter and self.head is None and self.still

    def report(self, path: str | Path, *, force: bool = False) -> Path:
        require_apart(path, self._folders())
        return html.write(self.page(), path, force=force)

    def _save_checkpoint(self, folder: Path, force: bool) -> Path:
        target = self.target.checkpoint
        assert target is not None
        plans = list(applied(target, self.update()))
        config = dict(target.config)
        files: dict[str, str | bytes] = {}
        if self.head is not None:
            plans, config, files = plans_with(self.target, plans, self.head)
        return write_checkpoint(
            folder,
            plans,
            like=target,
            config=config,
            files=files,
            card=self._card("transformers"),
            force=force,
        )

    def _save_module(self, folder: Path, force: bool) -> Path:
        module, bare = self.model(), Readout(self.target.model).head is None
        files: dict[str, str | bytes] = dict(self._card("transformers").files())
        if self.head is not None and bare and self.target.place is None:
            files |= beside(self.target, self.head)
        with atomic_folder(folder, force=force) as place:
            if hasattr(module, "save_pretrained"):
                module.save_pretrained(place)  # type: ignore[operator]
            else:
                tensors = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
                save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
            for name, content in files.items():
                (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    def _said(self) -> list[str]:
        verdict = self.verdict
        return [
            *([] if verdict is None else [verdict.sentence]),
            *(f"Warning: {text}." for text in self.warnings),
        ]

    def _card(self, library: str) -> ModelCard:
        return ModelCard(
            title=f"{short_name(self.tuned.name)} on {short_name(self.target.name)}",
            verb="transport",
            method=self.method,
            summary=f"What {short_name(self.tuned.name)} learned on {short_name(self.source.name)}, moved to "
            f"{short_name(self.target.name)} at strength {self.strength:g}.",
            notes=[*self._said(), *how_to_load(self.target, self.head)],
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
    inputs = [
        Input(role, model.name, model.fingerprint(), license_of(model.folder)) for role, model in models
    ]
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
        yield f"the labels of {short_name(plan.draws.name)} chose nothing: {plan.labels}"
    if plan.update.adapter and (head is not None or not moved.factors):
        why = "of its new head" if head is not None else "what was moved has no low rank"
        yield f"the adapter becomes a whole model, because {why}"
    yield from how_to_load(plan.target, head)


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
