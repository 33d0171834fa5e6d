"""Models merged one after another or together: what small bodies, CLIP and Flan-T5 have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, merge_updates_of
from transship.verbs.merge.protocol import continual_method
from transship_suites.runner import Experiment

Listed = TypeVar("Listed")


class Merging(Experiment):
    """A base and its fine-tunes; `reading` says how merging reads inputs: preprocess, features, device."""

    reading: Mapping[str, Any] = {}

    def in_seeds_order(self, names: Sequence[Listed]) -> list[Listed]:
        """Return names as listed under seed 0, else in an order that the seed draws."""
        if not self.case.seed:
            return list(names)
        return [names[place] for place in np.random.default_rng(self.case.seed).permutation(len(names))]

    def fusion(self, base: nn.Module, method: str, options: Mapping[str, Any], **more: Any) -> Fusion:
        """Return a fusion that nothing has arrived at; heads are measured elsewhere."""
        continual = continual_method(method, options)
        return Fusion(
            base,
            continual,
            heads="own",
            keep_inputs=None if continual.replay else 0,
            evaluate=False,
            seed=self.draw("merge"),
            **self.reading,
            **more,
        )

    def together(
        self,
        base: nn.Module,
        states: Mapping[str, Mapping[str, Tensor]],
        inputs: Mapping[str, Any],
        method: str,
        options: Mapping[str, Any],
        **reading: Any,
    ) -> dict[str, Tensor]:
        """Return the weights of all fine-tunes merged at once.

        Args:
            base: what they start from.
            states: task → its weights.
            inputs: task → its raw inputs, where the method reads some.
            method: as recipes name it.
            options: its fields.
            **reading: in the place of the experiment's own.
        """
        origin = ModuleOrigin(base, **{**self.reading, **reading})
        models = []
        for name, state in states.items():
            tuned = origin.admit(state, name)
            models.append(JointTask(tuned.update, tuned.model.over(inputs.get(name))))
        settled = origin.backbone(models[0].change)
        update = merge_updates_of(settled, models, method, options=options, seed=self.draw("merge"))
        return {name: tensor.cpu() + update[name].cpu() for name, tensor in settled.items()}


def mean_of(values: Mapping[str, float]) -> float:
    """Return the mean over tasks."""
    return sum(values.values()) / len(values)


def number(value: float) -> float | None:
    """Return a value, or None for none."""
    return None if math.isnan(value) else value
