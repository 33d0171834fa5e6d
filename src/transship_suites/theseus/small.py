"""One fine-tune moved between one pair of small vision transformers, measured row by row."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from transship.activations import load_model
from transship.activations.readout import Readout
from transship.data import wrap
from transship.geometry import ridge_of
from transship.registry import build_method
from transship.verbs.transport.settings import PAPER, Settings
from transship_suites.materials import small_vision as networks
from transship_suites.materials.small_vision import LabelledRows, VitShape
from transship_suites.runner import Case, Context, Measurement
from transship_suites.theseus.declared import AUTO, FINISHES, PAPER_ROLES, SMALL_BASELINES, START, finish_rows
from transship_suites.theseus.transports import Transports
from transship_suites.theseus.work import Work, by_default

TUNE_ROWS, CALIBRATION_ROWS = 10000, 4000
VALIDATION_ROWS, TEST_ROWS, CLEAN_ROWS = 250, 1000, 500
GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# part → (source, target) as (width, blocks, patch); copies of one shape differ in their seeds
PARTS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "wider": ((64, 4, 7), (96, 4, 7)),
    "narrower": ((96, 4, 7), (64, 4, 7)),
    "budget": ((64, 4, 7), (96, 4, 7)),
    "same": ((64, 4, 7), (64, 4, 7)),
    "deeper": ((64, 4, 7), (96, 6, 7)),
    "finer": ((64, 4, 7), (96, 4, 4)),
}


class SmallTransports(Transports):
    """The networks and pictures of one case."""

    def __init__(self, case: Case, context: Context) -> None:
        super().__init__(case, context)
        self.task = str(case["task"])
        shapes = PARTS[str(case["part"])]
        self.shapes = tuple(VitShape(*shape) for shape in shapes)
        train = networks.load_pictures("train", networks.PRETRAIN_ROWS)
        test = networks.load_pictures("test", TEST_ROWS)
        kept = TUNE_ROWS + CALIBRATION_ROWS
        self.tuning = self._shifted(train, slice(0, TUNE_ROWS), "tune")
        self.calibration = self._shifted(train, slice(TUNE_ROWS, kept), "calibrate")
        self.clean_calibration = train.inputs[kept : kept + CALIBRATION_ROWS]
        self.test = self._shifted(test, slice(0, TEST_ROWS), "test")
        self.clean = LabelledRows(test.inputs[:CLEAN_ROWS], test.labels[:CLEAN_ROWS])
        # parts share their networks: a second copy of a shape exists only where it is moved to itself
        self.copies = "first", "second" if shapes[0] == shapes[1] else "first"
        self.source = self._base(self.shapes[0], self.copies[0])
        self.target = self._base(self.shapes[1], self.copies[1])
        self.tuned = self._tuned(self.shapes[0], self.source, self.copies[0])
        # the last rows of the calibration data choose strengths; test images are never among them
        self.data = wrap(
            self.calibration.inputs.numpy(),
            self.calibration.labels.numpy(),
            kind="array",
            name=self.task,
            splits=["train"] * (CALIBRATION_ROWS - VALIDATION_ROWS) + ["validation"] * VALIDATION_ROWS,
        )
        self.settings = {"grid": GRID}

    def _shifted(self, pictures: LabelledRows, rows: slice, purpose: str) -> LabelledRows:
        images = networks.shift(pictures.inputs[rows], self.task, seed=self.context.seed(purpose, self.task))
        return LabelledRows(images, pictures.labels[rows])

    # -- networks ------------------------------------------------------------------------------------------

    def _base(self, shape: VitShape, copy: str) -> nn.Module:
        seed = self.context.seed("base", shape, copy)
        return networks.pretrained(self.context, shape, steps=self.options["pretrain"], seed=seed)

    def _tuned(self, shape: VitShape, base: nn.Module, copy: str) -> nn.Module:
        settings = {"steps": self.options["tune"], "seed": self.context.seed("tune", self.task)}
        parts = {
            **settings,
            "shape": str(shape),
            "task": self.task,
            "base": self.context.seed("base", shape, copy),
            "rows": TUNE_ROWS,
            "pretrain": self.options["pretrain"],
        }
        arrays = self.context.cached(
            "small-vision-tuned",
            parts,
            lambda: networks.to_arrays(networks.fine_tune(base, self.tuning, **settings)),
            code=(networks.fine_tune, networks._train, networks.pretrain, networks.shift),
        )
        return shape.load(arrays)

    def accuracy(self, model: nn.Module) -> float:
        """Return a network's accuracy on the shifted test pictures."""
        return networks.accuracy(model, self.test)

    def beside(self, model: nn.Module) -> dict[str, float]:
        return {"clean": networks.accuracy(model, self.clean)}

    def fine_tuned(self, model: nn.Module, steps: int) -> nn.Module:
        """Return a network after a short fine-tune."""
        return networks.fine_tune(model, self.tuning, steps=steps, seed=self.context.seed("warm"))

    # -- parts ---------------------------------------------------------------------------------------------

    def measured(self) -> Iterator[Measurement]:
        """The untouched target, the fine-tuned source, the target's own fine-tune, and the part's rows."""
        yield self.row(self.target, "target zero-shot", accuracy=self.zero)
        yield self.row(self.tuned, "source fine-tuned", accuracy=self.best)
        yield self.row(self._tuned(self.shapes[1], self.target, self.copies[1]), "target fine-tuned")
        parts = {
            "wider": self._wider,
            "narrower": self._narrower,
            "budget": self._budget,
            "same": self._same,
            "deeper": self._deeper,
            "finer": self._finer,
        }
        yield from parts[str(self.case["part"])]()

    def _wider(self) -> Iterator[Measurement]:
        """Table 1 at B = 10, and our methods."""
        plan = self.plan(batches=10)
        for name in ("theseus", *SMALL_BASELINES, "random"):
            yield self.moved(plan, name, batches=10)
        yield from self._ours(plan)
        yield from self._finished()
        # the paper leaves patches, positions, tokens and heads where they are, for its baselines too
        paper = self.plan(batches=10, roles=PAPER)
        for name in ("theseus", *SMALL_BASELINES):
            yield self.moved(paper, name, title=PAPER_ROLES.format(name), batches=10)

    def _narrower(self) -> Iterator[Measurement]:
        """Tables 7 and 8: the reverse direction, at B = 10 and by the number and kind of inputs."""
        plan = self.plan(batches=10)
        for name in ("theseus", *SMALL_BASELINES):
            yield self.moved(plan, name, batches=10)
        yield from self._ours(plan)
        yield from self._finished()
        for batches in self.options["batches"]:
            if batches != 10:
                yield self.moved(self.plan(batches=batches), "theseus", batches=batches)
        yield from self._by_shots("theseus")

    def _ours(self, plan: Work) -> Iterator[Measurement]:
        yield self.moved(plan, "gradient", {"blend": 1.0}, batches=10)
        yield self.moved(plan, "gradient", title="gradient blend", batches=10)
        for title, body in (("carry alone", "none"), ("theseus + carry", "theseus")):
            yield self.moved(plan, "carry", {"body": body}, title=title, batches=10)
        yield self.moved(plan, "carry", {"body": "gradient"}, title="gradient + carry", batches=10)
        yield from self._path(plan)

    def _finished(self) -> Iterator[Measurement]:
        """Finishes of the update that four path steps moved, each with its control; no label is read."""
        plan = self.plan(validation=False, path_steps=4)
        start = plan.run(build_method("transport", "gradient", {"blend": 1.0}))
        yield self.row(start.model(), START, strength=start.strength)
        for finish, kept in FINISHES:
            keep = self.clean_calibration.numpy() if kept else None
            for title, result in zip(
                finish_rows(finish, kept=kept), plan.finish(start, finish, keep=keep), strict=True
            ):
                yield self.row(result.model(), title)

    def _by_shots(self, *methods: str) -> Iterator[Measurement]:
        for shots in self.options["shots"]:
            plan = self.plan(shots=shots)
            for name in methods:
                yield self.moved(plan, name, shots=shots)

    def _path(self, plan: Work) -> Iterator[Measurement]:
        """Four path steps with the target's own head, and a head carried onto the same weights."""
        # the first step's statistics are those of a single step
        plan = plan.with_settings(path_steps=4)
        result = plan.run(build_method("transport", "gradient", {"blend": 1.0}))
        yield self.row(result.model(), "gradient, 4 path steps", strength=result.choice.strength, batches=10)
        carried = plan.with_head(result, build_method("transport", "carry", {"body": "gradient"}))
        yield self.row(carried.model(), "4 path steps + carry", strength=carried.strength, batches=10)

    def _budget(self) -> Iterator[Measurement]:
        """What the number and kind of inputs are worth, the remaining methods, the controls and a warm
        start.
        """
        for batches in self.options["batches"]:
            plan = self.plan(batches=batches)
            yield self.moved(plan, "theseus", batches=batches)
            yield self.moved(plan, "pinv", batches=batches)
        yield from self._by_shots("theseus")
        plan = self.plan(batches=10)
        per_side = {"form": "per-side"}
        yield self.moved(plan, "pinv-tikhonov", per_side, title="pinv-tikhonov per side", batches=10)
        free, paper = self.plan(batches=10, validation=False), self.plan(batches=10, roles=PAPER)
        yield self.moved(free, "theseus", title="theseus, strength without labels", batches=10)
        yield self.moved(free, "gradient", title="gradient blend, strength without labels", batches=10)
        yield self.moved(paper, "theseus", title=PAPER_ROLES.format("theseus"), batches=10)
        keep, body = self.clean_calibration.numpy(), {"body": "gradient"}
        yield self.moved(plan, "carry", body, title="gradient + carry", batches=10)
        yield self.moved(plan, "carry", body, title="gradient + carry, kept", batches=10, keep=keep)
        yield from self._controls(plan)
        settings = Settings(validation=False, seed=self.draw("draw"))
        finished, control = by_default(self.source, self.tuned, self.target, self.data, settings)
        yield self.row(finished.model(), AUTO, strength=finished.strength)
        yield self.row(self.target if control is None else control.model(), f"{AUTO}, its control")
        start = plan.run("theseus").model()
        starts = {"from the target": self.target, "from the transported start": start}
        yield from self.warm_start(starts, self.options["warm"])

    def _same(self) -> Iterator[Measurement]:
        """Table 3: one shape, other pre-training."""
        plan = self.plan(batches=10)
        rows: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("identity", "identity", {}),
            ("transfusion, shared residual", "transfusion", {}),
            ("transfusion, segments", "transfusion", {"residual": "segments"}),
            ("gradfix", "gradfix", {}),
            ("gradfix of a random update", "gradfix", {"control": True}),
            ("gradfix on theseus", "gradfix", {"body": "theseus"}),
            ("theseus", "theseus", {}),
            ("gradient blend", "gradient", {}),
        )
        for title, name, options in rows:
            yield self.moved(plan, name, options, title=title, batches=10)
        yield from self._by_shots("gradfix", "theseus")

    def _deeper(self) -> Iterator[Measurement]:
        """Table 4: other depth and width."""
        for depth in ("interpolate", "nearest", "skip"):
            plan = self.plan(batches=10, depth=depth)
            yield self.moved(plan, "theseus", batches=10, depth=depth)
            yield self.moved(plan, "gradient", title="gradient blend", batches=10, depth=depth)

    def _finer(self) -> Iterator[Measurement]:
        """Table 5: another patch grid."""
        for align in ("mean", "linear", "grid"):
            for batches in (1, 2, 5):
                where: dict[str, Any] = {"batches": batches, "align": align}
                yield self.moved(self.plan(**where), "theseus", **where)

    def _controls(self, plan: Work) -> Iterator[Measurement]:
        """What a transport must be held against: training on pseudo-labels, and a ridge head on true
        labels.
        """
        images = torch.from_numpy(plan.draws.calibration)
        outputs = plan.teacher.outputs
        assert outputs is not None
        pseudo = LabelledRows(images, outputs.argmax(1))
        for steps in (40, 160):
            seed = self.context.seed("control")
            trained = networks.fine_tune(self.target, pseudo, steps=steps, seed=seed, batch=32)
            yield self.row(trained, f"{steps} training steps on pseudo-labels")
        yield self.row(self._ridge_head(1000), "ridge head on 1000 true labels")

    def _ridge_head(self, rows: int) -> nn.Module:
        model: nn.Module = copy.deepcopy(self.target)
        features = Readout(load_model(model)).all(list(self.calibration.inputs[:rows].numpy())).features
        wanted = nn.functional.one_hot(self.calibration.labels[:rows], networks.CLASSES).double()
        head = ridge_of(features.double(), wanted)
        assert head.bias is not None
        with torch.no_grad():
            for name, value in (("weight", head.matrix.T), ("bias", head.bias)):
                model.get_parameter(f"classifier.{name}").copy_(value.float())
        return model
