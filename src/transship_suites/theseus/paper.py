"""One image set between one pair of CLIP models: the fine-tune, its transports, and what each is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from transship.activations import LoadedModel
from transship_suites.materials import clip
from transship_suites.materials import image_sets as pictures
from transship_suites.runner import Case, Context, Measurement


class Bench:
    """The models, rows and measuring of one case; numbers come from the scale's options."""

    def __init__(self, case: Case, context: Context) -> None:
        self.context, self.options, self.task = context, context.options, str(case["task"])
        self.part: Mapping[str, Any] = self.options["parts"][case["part"]]
        draw = context.seed("rows") % 2**31
        train = pictures.image_rows(self.task, "train", self.options["train"], seed=draw)
        # Ilharco et al. keep a tenth of the training rows, at most 5,000, to choose by
        self.rows = pictures.with_validation(train, 0.1, 5000, seed=draw)
        self.test = pictures.image_rows(self.task, "test", self.options["test"])
        self.source = self._zero_shot(self.part["source"])
        self.target = self._zero_shot(self.part["target"])
        self.tuned = self._tuned(self.part["source"], self.source)

    def _zero_shot(self, name: str) -> LoadedModel:
        hub = self.options["models"][name]
        return clip.zero_shot_task(clip.load_clip(hub, device=self.context.device), self.task)

    def _tuned(self, name: str, base: LoadedModel) -> LoadedModel:
        """Return the model fine-tuned on the set, made once for all parts and runs."""
        settings = {**self.options["tuning"], "seed": self.context.seed("tune", self.task) % 2**31}
        parts = {
            **settings,
            "model": self.options["models"][name],
            "rows": [self.rows.name, len(self.rows), self.context.seed("rows")],
            "size": _size(base),
        }
        made = self.context.cached(
            "clip-tuned",
            parts,
            lambda: clip.tuned_state(base, self.rows.split("train"), **settings),
            code=(clip.tuned_state, clip.zero_shot_task, pictures.with_validation),
        )
        return clip.with_state(base, made)

    # -- measuring -----------------------------------------------------------------------------------------

    @cached_property
    def zero(self) -> float:
        """The untouched target's accuracy."""
        return clip.image_accuracy(self.target, self.test, batch=self.options["batch"])

    @cached_property
    def best(self) -> float:
        """The fine-tuned source's accuracy."""
        return clip.image_accuracy(self.tuned, self.test, batch=self.options["batch"])

    def _row(self, found: float, method: str, **more: Any) -> Measurement:
        gain = self.best - self.zero
        strength = more.pop("strength", None)
        metrics = {
            "accuracy": found,
            "gain": found - self.zero,
            "share": (found - self.zero) / gain if gain else None,
            "strength": strength,
        }
        kept = {name: value for name, value in metrics.items() if value is not None}
        return Measurement({"method": method, **more}, kept)

    def work(self, **settings: Any) -> Any:
        """Return a planned transport; `batches` or `shots`, and `align`, differ from row to row."""
        from transship.verbs.transport.models import Opening
        from transship.verbs.transport.settings import PAPER, Settings
        from transship.verbs.transport.work import Work

        chosen = Settings(
            seed=self.context.seed("draw") % 2**31,
            grid=tuple(self.options["strengths"]),
            batch_size=self.options["calibration"],
            roles=PAPER,
            **settings,
        )
        opening = Opening(device=self.context.device)
        return Work.open(self.source, self.tuned, self.target, self.rows, opening, chosen)

    def moved(self, work: Any, title: str, method: str, **more: Any) -> Measurement:
        """Transport with one method and measure the result."""
        from transship.registry import build_method

        result = work.run(build_method("transport", method))
        model = clip.like(self.target, result.model())
        found = clip.image_accuracy(model, self.test, batch=self.options["batch"])
        return self._row(found, title, strength=result.strength, **more)

    def measured(self) -> Iterator[Measurement]:
        """The bounds, and every row that the part asks for."""
        yield self._row(self.zero, "θ_B zero-shot")
        yield self._row(self.best, "θ_A fine-tune")
        own = self._tuned(self.part["target"], self.target)
        found = clip.image_accuracy(own, self.test, batch=self.options["batch"])
        yield self._row(found, "θ_B fine-tune")
        for batches, methods in self.part.get("batches", {}).items():
            work = self.work(batches=int(batches))
            for method in methods:
                yield self.moved(work, method, method, batches=int(batches), align="auto")
        for shots, methods in self.part.get("shots", {}).items():
            work = self.work(shots=int(shots))
            for method in methods:
                yield self.moved(work, method, method, shots=int(shots))
        for align in self.part.get("align", ()):
            for batches in self.part["align_batches"]:
                work = self.work(batches=int(batches), align=align)
                yield self.moved(work, "theseus", "theseus", batches=int(batches), align=align)
        if self.part.get("warm"):
            yield from self._warm_start(self.part["warm"])

    def _warm_start(self, asked: Mapping[str, Any]) -> Iterator[Measurement]:
        """Figure 2: fine-tuning from the target and from the transported start, by steps."""
        from transship.registry import build_method

        starts = {"θ_B": self.target}
        for batches in asked["batches"]:
            result = self.work(batches=int(batches)).run(build_method("transport", "theseus"))
            starts[f"THESEUS, B = {batches}"] = clip.like(self.target, result.model())
        settings = {**self.options["tuning"], "seed": self.context.seed("warm") % 2**31}
        for name, start in starts.items():
            for steps in asked["steps"]:
                made = start
                if steps:
                    short = {
                        **settings,
                        "steps": steps,
                        "warmup": min(settings["warmup"], max(1, steps // 10)),
                    }
                    made = clip.with_state(start, clip.tuned_state(start, self.rows.split("train"), **short))
                found = clip.image_accuracy(made, self.test, batch=self.options["batch"])
                yield Measurement(
                    {"method": "warm start", "start": name, "steps": steps}, {"accuracy": found}
                )


def _size(model: LoadedModel) -> int:
    """Return the bytes of a model's weight files, so that other files of the same name are noticed."""
    if model.folder is None:
        return 0
    return sum(file.stat().st_size for file in model.folder.glob("*.safetensors"))
