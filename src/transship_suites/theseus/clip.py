"""One image set between one pair of CLIP models: the fine-tune, its transports, and what each is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transship.activations import LoadedModel
from transship.verbs.transport.settings import PAPER
from transship_suites.materials import clip
from transship_suites.materials import image_sets as pictures
from transship_suites.runner import Case, Context, Measurement
from transship_suites.theseus.transports import Transports


class ClipTransports(Transports):
    """The models and rows of one case; numbers come from the scale's options."""

    def __init__(self, case: Case, context: Context) -> None:
        super().__init__(case, context)
        self.task = str(case["task"])
        self.part: Mapping[str, Any] = self.options["parts"][case["part"]]
        draw = self.draw("rows")
        train = pictures.image_rows(self.task, "train", self.options["train"], seed=draw)
        # Ilharco et al. keep a tenth of the training rows, at most 5,000, to choose by
        self.data = pictures.with_validation(train, 0.1, 5000, seed=draw)
        self.test = pictures.image_rows(self.task, "test", self.options["test"])
        self.source = self._zero_shot(self.part["source"])
        self.target = self._zero_shot(self.part["target"])
        self.tuned = self._tuned(self.part["source"], self.source)
        self.settings = {
            "grid": tuple(self.options["strengths"]),
            "batch_size": self.options["calibration"],
            "roles": PAPER,
        }

    def _zero_shot(self, name: str) -> LoadedModel:
        hub = self.options["models"][name]
        return clip.zero_shot_task(clip.load_clip(hub, device=self.context.device), self.task)

    def _tuned(self, name: str, base: LoadedModel) -> LoadedModel:
        """Return the model fine-tuned on the set, made once for all parts and runs."""
        settings = {**self.options["tuning"], "seed": self.draw("tune", self.task)}
        parts = {
            **settings,
            "model": self.options["models"][name],
            "rows": [self.data.name, len(self.data), self.context.seed("rows")],
            "size": _size(base),
        }
        arrays = self.context.cached(
            "clip-tuned",
            parts,
            lambda: clip.tuned_state(base, self.data.split("train"), **settings),
            code=(clip.tuned_state, clip.zero_shot_task, pictures.with_validation),
        )
        return clip.with_state(base, arrays)

    def accuracy(self, model: LoadedModel) -> float:
        """Return a classifier's accuracy on the set's test images."""
        return clip.image_accuracy(model, self.test, batch=self.options["batch"])

    def runnable(self, model: Any) -> LoadedModel:
        """Return a moved model with the target's preprocessing."""
        return clip.like(self.target, model)

    def fine_tuned(self, model: LoadedModel, steps: int) -> LoadedModel:
        """Return a classifier after a short fine-tune."""
        settings = {**self.options["tuning"], "seed": self.draw("warm"), "steps": steps}
        settings["warmup"] = min(settings["warmup"], max(1, steps // 10))
        return clip.with_state(model, clip.tuned_state(model, self.data.split("train"), **settings))

    def measured(self) -> Iterator[Measurement]:
        """The bounds, and every row that the part asks for."""
        yield self.row(self.target, "θ_B zero-shot", accuracy=self.zero)
        yield self.row(self.tuned, "θ_A fine-tune", accuracy=self.best)
        yield self.row(self._tuned(self.part["target"], self.target), "θ_B fine-tune")
        for batches, methods in self.part.get("batches", {}).items():
            plan = self.plan(batches=int(batches))
            for method in methods:
                yield self.moved(plan, method, batches=int(batches), align="auto")
        for shots, methods in self.part.get("shots", {}).items():
            plan = self.plan(shots=int(shots))
            for method in methods:
                yield self.moved(plan, method, shots=int(shots))
        for align in self.part.get("align", ()):
            for batches in self.part["align_batches"]:
                where: dict[str, Any] = {"batches": int(batches), "align": align}
                yield self.moved(self.plan(**where), "theseus", **where)
        if self.part.get("warm"):
            starts = {"θ_B": self.target}
            for batches in self.part["warm"]["batches"]:
                result = self.plan(batches=int(batches)).run("theseus")
                starts[f"THESEUS, B = {batches}"] = self.runnable(result.model())
            yield from self.warm_start(starts, self.part["warm"]["steps"])


def _size(model: LoadedModel) -> int:
    """Return the bytes of a model's weight files, so that other files of the same name are noticed."""
    if model.folder is None:
        return 0
    return sum(file.stat().st_size for file in model.folder.glob("*.safetensors"))
