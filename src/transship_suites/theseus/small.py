"""One fine-tune moved between one pair of small vision transformers, measured row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from transship_suites.runner import Case, Context, Measurement

if TYPE_CHECKING:
    from torch import nn

    from transship_suites.materials.small_networks import Network
    from transship_suites.materials.small_pictures import Pictures

PRETRAIN_ROWS, TUNE_ROWS, CALIBRATION_ROWS = 20000, 10000, 4000
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
BASELINES = ("pinv", "pinv-tikhonov", "random-aligned", "pad")
PAPER_ROLES = "{}, roles of the paper"


class Bench:
    """The networks, pictures and measuring of one case."""

    def __init__(self, case: Case, context: Context) -> None:
        from transship_suites.materials.shifts import shift
        from transship_suites.materials.small_networks import Network
        from transship_suites.materials.small_pictures import Pictures, load_pictures

        self.context, self.options, self.task = context, context.options, str(case["task"])
        shapes = PARTS[str(case["part"])]
        self.shapes = tuple(Network(*shape) for shape in shapes)
        train = load_pictures("train", PRETRAIN_ROWS)
        test = load_pictures("test", TEST_ROWS)

        def shifted(pictures: Pictures, rows: slice, purpose: str) -> Pictures:
            images = shift(pictures.images[rows], self.task, seed=context.seed(purpose, self.task))
            return Pictures(images, pictures.labels[rows])

        self.pretraining = train
        self.tuning = shifted(train, slice(0, TUNE_ROWS), "tune")
        self.calibration = shifted(train, slice(TUNE_ROWS, TUNE_ROWS + CALIBRATION_ROWS), "calibrate")
        self.clean_calibration = train.images[TUNE_ROWS + CALIBRATION_ROWS : TUNE_ROWS + 2 * CALIBRATION_ROWS]
        self.test = shifted(test, slice(0, TEST_ROWS), "test")
        self.clean = Pictures(test.images[:CLEAN_ROWS], test.labels[:CLEAN_ROWS])
        # parts share their networks: a second copy of a shape exists only where it is moved to itself
        self.copies = "first", "second" if shapes[0] == shapes[1] else "first"
        self.source = self._base(self.shapes[0], self.copies[0])
        self.target = self._base(self.shapes[1], self.copies[1])
        self.tuned = self._tuned(self.shapes[0], self.source, self.copies[0])

    # -- networks ------------------------------------------------------------------------------------------

    def _base(self, shape: Network, copy: str) -> nn.Module:
        from transship_suites.materials import small_networks as networks
        from transship_suites.materials.shifts import augment
        from transship_suites.materials.small_networks import pretrain

        settings = {"steps": self.options["pretrain"], "seed": self.context.seed("base", shape, copy)}
        parts = {**settings, "shape": str(shape), "rows": PRETRAIN_ROWS}
        made = lambda: _arrays(pretrain(shape, self.pretraining, **settings))  # noqa: E731
        code = (pretrain, networks._train, augment, networks.Network)
        return shape.load(self.context.cached("small-vision", parts, made, code=code))

    def _tuned(self, shape: Network, base: nn.Module, copy: str) -> nn.Module:
        from transship_suites.materials import small_networks as networks
        from transship_suites.materials.shifts import shift
        from transship_suites.materials.small_networks import fine_tune

        base_seed = self.context.seed("base", shape, copy)
        settings = {"steps": self.options["tune"], "seed": self.context.seed("tune", self.task)}
        parts = {
            **settings,
            "shape": str(shape),
            "task": self.task,
            "base": base_seed,
            "rows": TUNE_ROWS,
            "pretrain": self.options["pretrain"],
        }
        made = lambda: _arrays(fine_tune(base, self.tuning, **settings))  # noqa: E731
        code = (fine_tune, networks._train, networks.pretrain, shift)
        return shape.load(self.context.cached("small-vision-tuned", parts, made, code=code))

    # -- measuring -----------------------------------------------------------------------------------------

    def bounds(self) -> Iterator[Measurement]:
        """The untouched target, the fine-tuned source and the target's own fine-tune."""
        from transship_suites.materials.small_networks import accuracy

        self.zero, self.best = accuracy(self.target, self.test), accuracy(self.tuned, self.test)
        yield self._row(self.target, "target zero-shot")
        yield self._row(self.tuned, "source fine-tuned")
        yield self._row(self._tuned(self.shapes[1], self.target, self.copies[1]), "target fine-tuned")

    def _row(self, model: nn.Module, method: str, **more: Any) -> Measurement:
        from transship_suites.materials.small_networks import accuracy

        strength = more.pop("strength", None)
        found = accuracy(model, self.test)
        metrics = {
            "accuracy": found,
            "share": (found - self.zero) / (self.best - self.zero),
            "clean": accuracy(model, self.clean),
            "strength": strength,
        }
        return Measurement(
            {"method": method, **more}, {name: value for name, value in metrics.items() if value is not None}
        )

    def work(self, **settings: Any) -> Any:
        """Return a planned transport of this case."""
        from transship.data import wrap
        from transship.verbs.transport.models import Opening
        from transship.verbs.transport.settings import Settings
        from transship.verbs.transport.work import Work

        # the last rows of the calibration data choose strengths; test images are never among them
        training = CALIBRATION_ROWS - VALIDATION_ROWS
        data = wrap(
            self.calibration.images.numpy(),
            self.calibration.labels.numpy(),
            kind="array",
            name=self.task,
            splits=["train"] * training + ["validation"] * VALIDATION_ROWS,
        )
        chosen = Settings(**{"seed": self.context.seed("draw") % 2**31, "grid": GRID, **settings})
        return Work.open(
            self.source, self.tuned, self.target, data, Opening(device=self.context.device), chosen
        )

    def moved(
        self, work: Any, title: str, method: str, options: Mapping[str, Any] | None = None, **more: Any
    ) -> Measurement:
        """Transport with one method and measure the result."""
        from transship.registry import build_method

        result = work.run(build_method("transport", method, options), keep=more.pop("keep", None))
        return self._row(result.model(), title, strength=result.strength, **more)

    # -- parts ---------------------------------------------------------------------------------------------

    def wider(self) -> Iterator[Measurement]:
        """Table 1 at B = 10, and our methods."""
        work = self.work(batches=10)
        for name in ("theseus", *BASELINES):
            yield self.moved(work, name, name, batches=10)
        yield self.moved(work, "random", "random", batches=10)
        yield from self._ours(work)
        # the paper leaves patches, positions, tokens and heads where they are, for its baselines too
        paper = self.work(batches=10, roles=_paper_roles())
        for name in ("theseus", *BASELINES):
            yield self.moved(paper, PAPER_ROLES.format(name), name, batches=10)

    def narrower(self) -> Iterator[Measurement]:
        """Tables 7 and 8: the reverse direction, at B = 10 and by the number and kind of inputs."""
        work = self.work(batches=10)
        for name in ("theseus", *BASELINES):
            yield self.moved(work, name, name, batches=10)
        yield from self._ours(work)
        for batches in self.options["batches"]:
            if batches != 10:
                yield self.moved(self.work(batches=batches), "theseus", "theseus", batches=batches)
        yield from self._by_shots("theseus")

    def _ours(self, work: Any) -> Iterator[Measurement]:
        yield self.moved(work, "gradient", "gradient", {"blend": 1.0}, batches=10)
        yield self.moved(work, "gradient blend", "gradient", batches=10)
        yield from self._carried(work)
        yield from self._path(work)

    def _by_shots(self, *methods: str) -> Iterator[Measurement]:
        for shots in self.options["shots"]:
            work = self.work(shots=shots)
            for name in methods:
                yield self.moved(work, name, name, shots=shots)

    def _carried(self, work: Any) -> Iterator[Measurement]:
        for title, body in (
            ("carry alone", "none"),
            ("theseus + carry", "theseus"),
            ("gradient + carry", "gradient"),
        ):
            yield self.moved(work, title, "carry", {"body": body}, batches=10)

    def _path(self, work: Any) -> Iterator[Measurement]:
        """Four path steps with the target's own head, and a head carried onto the same weights."""
        import dataclasses

        from transship.registry import build_method
        from transship.verbs.transport.methods.carry import Carry

        # the first step's statistics are those of a single step
        work = dataclasses.replace(work, settings=dataclasses.replace(work.settings, path_steps=4))
        result = work.run(build_method("transport", "gradient", {"blend": 1.0}))
        yield self._row(result.model(), "gradient, 4 path steps", strength=result.choice.strength, batches=10)
        carry = Carry(body="gradient")
        head = work.head(carry, result.moved, result.choice)
        carried = work.result(carry, result.moved, result.choice, head)
        yield self._row(carried.model(), "4 path steps + carry", strength=carried.strength, batches=10)

    def budget(self) -> Iterator[Measurement]:
        """What the number and kind of inputs are worth, the remaining methods, the controls and a warm
        start.
        """
        for batches in self.options["batches"]:
            work = self.work(batches=batches)
            yield self.moved(work, "theseus", "theseus", batches=batches)
            yield self.moved(work, "pinv", "pinv", batches=batches)
        yield from self._by_shots("theseus")
        work = self.work(batches=10)
        per_side = {"form": "per-side"}
        yield self.moved(work, "pinv-tikhonov per side", "pinv-tikhonov", per_side, batches=10)
        free = self.work(batches=10, validation=False)
        yield self.moved(free, "theseus, strength without labels", "theseus", batches=10)
        yield self.moved(free, "gradient blend, strength without labels", "gradient", batches=10)
        paper = self.work(batches=10, roles=_paper_roles())
        yield self.moved(paper, PAPER_ROLES.format("theseus"), "theseus", batches=10)
        keep, body = self.clean_calibration.numpy(), {"body": "gradient"}
        yield self.moved(work, "gradient + carry", "carry", body, batches=10)
        yield self.moved(work, "gradient + carry, kept", "carry", body, batches=10, keep=keep)
        yield from self._controls(work)
        yield from self._warm_start(work)

    def same(self) -> Iterator[Measurement]:
        """Table 3: one shape, other pre-training."""
        work = self.work(batches=10)
        for title, name, options in (
            ("identity", "identity", {}),
            ("transfusion, shared residual", "transfusion", {}),
            ("transfusion, segments", "transfusion", {"residual": "segments"}),
            ("gradfix", "gradfix", {}),
            ("gradfix of a random update", "gradfix", {"control": True}),
            ("gradfix on theseus", "gradfix", {"body": "theseus"}),
            ("theseus", "theseus", {}),
            ("gradient blend", "gradient", {}),
        ):
            yield self.moved(work, title, name, options, batches=10)
        yield from self._by_shots("gradfix", "theseus")

    def deeper(self) -> Iterator[Measurement]:
        """Table 4: other depth and width."""
        for depth in ("interpolate", "nearest", "skip"):
            work = self.work(batches=10, depth=depth)
            yield self.moved(work, "theseus", "theseus", batches=10, depth=depth)
            yield self.moved(work, "gradient blend", "gradient", batches=10, depth=depth)

    def finer(self) -> Iterator[Measurement]:
        """Table 5: another patch grid."""
        for align in ("mean", "linear", "grid"):
            for batches in (1, 2, 5):
                yield self.moved(
                    self.work(batches=batches, align=align),
                    "theseus",
                    "theseus",
                    batches=batches,
                    align=align,
                )

    def _controls(self, work: Any) -> Iterator[Measurement]:
        """What a transport must be held against: training on pseudo-labels, and a ridge head on true
        labels.
        """
        import torch

        from transship_suites.materials.small_networks import fine_tune
        from transship_suites.materials.small_pictures import Pictures

        images = torch.from_numpy(work.draws.calibration)
        pseudo = Pictures(images, work.teacher.outputs.argmax(1))
        for steps in (40, 160):
            trained = fine_tune(self.target, pseudo, steps=steps, seed=self.context.seed("control"), batch=32)
            yield self._row(trained, f"{steps} training steps on pseudo-labels")
        yield self._row(self._ridge_head(1000), "ridge head on 1000 true labels")

    def _ridge_head(self, rows: int) -> nn.Module:
        import copy

        import torch

        from transship.activations import load_model
        from transship.activations.readout import Readout
        from transship.geometry import ridge_of

        made = copy.deepcopy(self.target)
        features = Readout(load_model(made)).all(list(self.calibration.images[:rows].numpy())).features
        wanted = torch.nn.functional.one_hot(self.calibration.labels[:rows], 20).double()
        head = ridge_of(features.double(), wanted)
        assert head.bias is not None
        with torch.no_grad():
            for name, value in (("weight", head.matrix.T), ("bias", head.bias)):
                made.get_parameter(f"classifier.{name}").copy_(value.float())
        return made

    def _warm_start(self, work: Any) -> Iterator[Measurement]:
        """Figure 2: the target fine-tuned for a few steps from where it is and from the transported start;
        every point is a fine-tune of its own, whose rate falls to its end.
        """
        from transship.registry import build_method
        from transship_suites.materials.small_networks import fine_tune

        start = work.run(build_method("transport", "theseus")).model()
        seed = self.context.seed("warm")
        for name, model in (("from the target", self.target), ("from the transported start", start)):
            for steps in self.options["warm"]:
                tuned = fine_tune(model, self.tuning, steps=steps, seed=seed) if steps else model
                yield self._row(tuned, "warm start", start=name, steps=steps)


def _paper_roles() -> Any:
    from transship.verbs.transport.settings import PAPER

    return PAPER


def _arrays(model: nn.Module) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}
