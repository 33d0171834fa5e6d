"""Models merged one after another or together: what small bodies, CLIP and Flan-T5 have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.origin import ModuleOrigin
from transship.verbs.merge.joint import JointTask, merge_updates_of
from transship.verbs.merge.protocol import continual_method
from transship.verbs.merge.tasks.heads import accuracy
from transship_suites.otmf.names import FINISHED, UNFINISHED, UNMERGED
from transship_suites.otmf.trajectory import TunedTask
from transship_suites.runner import Experiment, Measurement

Listed = TypeVar("Listed")


# row → strength of the average, and its finish
ENDINGS: dict[str, tuple[float | str, str]] = {
    UNFINISHED: ("norm", "none"),
    FINISHED: ("norm", "weights"),
    UNMERGED: (0.0, "weights"),
}


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

    def finishes(
        self, base: nn.Module, arrivals: Sequence[TunedTask], inputs: int | None, steps: int | None
    ) -> Iterator[Measurement]:
        """Measure the average, its finish on kept inputs without a label, and that of the unmerged base.

        Args:
            base: what they start from.
            arrivals: fine-tunes in their order.
            inputs: that are kept of each task; None for all that are known.
            steps: of a finish; None for as many as it takes by default.
        """
        for title, (strength, finish) in ENDINGS.items():
            asked = finish if steps is None or finish == "none" else f"{finish}:{steps}"
            fusion = Fusion(
                base,
                "average",
                keep_inputs=inputs,
                strength=strength,
                finish=asked,
                evaluate=False,
                seed=self.draw("merge"),
                **self.reading,
            )
            start = time.process_time()
            for arrival in arrivals:
                last = arrival is arrivals[-1]
                fusion.add(arrival.state, arrival.known.inputs, name=arrival.name, finish=last)
            seconds = time.process_time() - start
            shares = {
                arrival.name: accuracy(fusion.predict(arrival.name, arrival.test), arrival.test_labels)
                for arrival in arrivals
            }
            yield Measurement({"method": title}, {"accuracy": mean_of(shares), "seconds": seconds})

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
