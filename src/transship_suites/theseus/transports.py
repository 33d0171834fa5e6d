"""A fine-tune moved between one pair of models, measured row by row: of small networks, or of CLIP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from transship.data import Dataset
from transship.registry import build_method
from transship.verbs.transport.settings import Opening, Settings
from transship_suites.runner import Experiment, Measurement
from transship_suites.theseus.work import Work


class Transports(Experiment):
    """One task between one pair of models.

    Attributes:
        source: before its fine-tune.
        tuned: the source after it.
        target: untouched.
        data: inputs to calibrate on and rows to choose strengths by.
        settings: of every transport of the case.
    """

    source: Any
    tuned: Any
    target: Any
    data: Dataset
    settings: Mapping[str, Any]

    @abstractmethod
    def accuracy(self, model: Any) -> float:
        """Return a model's accuracy on the task's test rows."""

    @abstractmethod
    def fine_tuned(self, model: Any, steps: int) -> Any:
        """Return the model after a fine-tune of so few steps, whose rate falls to its end."""

    def runnable(self, model: Any) -> Any:
        """Return a moved model as `accuracy` takes it."""
        return model

    @cached_property
    def zero(self) -> float:
        """The untouched target's accuracy."""
        return self.accuracy(self.target)

    @cached_property
    def best(self) -> float:
        """The fine-tuned source's accuracy."""
        return self.accuracy(self.tuned)

    def row(self, model: Any, method: str, *, accuracy: float | None = None, **more: Any) -> Measurement:
        """Return what a model measures: accuracy, gain over the target, share of the source's gain."""
        accuracy = self.accuracy(model) if accuracy is None else accuracy
        gain, whole = accuracy - self.zero, self.best - self.zero
        metrics = {"accuracy": accuracy, "gain": gain, "share": gain / whole if whole else None}
        metrics |= {"strength": more.pop("strength", None), **self.beside(model)}
        return Measurement(
            {"method": method, **more}, {name: value for name, value in metrics.items() if value is not None}
        )

    def beside(self, model: Any) -> dict[str, float]:
        return {}

    def plan(self, **settings: Any) -> Work:
        """Return a planned transport of this case; `batches` or `shots`, say, differ from row to row."""
        chosen = Settings(**{"seed": self.draw("draw"), **self.settings, **settings})
        opening = Opening(device=self.context.device)
        return Work.open(self.source, self.tuned, self.target, self.data, opening, chosen)

    def moved(
        self,
        plan: Work,
        method: str,
        options: Mapping[str, Any] | None = None,
        *,
        title: str = "",
        keep: Any = None,
        **more: Any,
    ) -> Measurement:
        """Transport with one method and measure the result."""
        result = plan.run(build_method("transport", method, options), keep=keep)
        return self.row(self.runnable(result.model()), title or method, strength=result.strength, **more)

    def warm_start(
        self, starts: Mapping[str, Any], counts: Iterator[int] | list[int]
    ) -> Iterator[Measurement]:
        """Figure 2: fine-tuned for a few steps, from the target and from transported starts."""
        for name, start in starts.items():
            for steps in counts:
                tuned = self.fine_tuned(start, steps) if steps else start
                yield self.row(tuned, "warm start", start=name, steps=steps)
