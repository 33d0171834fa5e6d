"""Published CLIP fine-tunes merged one after another or together, with zero-shot heads.

The body is CLIP's image tower with its projection, its output of unit length; a task's head is 100 times the
unit vectors of its prompts, so that own heads give CLIP's zero-shot logits.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.activations import LoadedModel, load_model
from transship.data import find_model
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.fusion.origin import fingerprint
from transship.verbs.merge.protocol import continual_method
from transship.verbs.merge.tasks.heads import LinearHead
from transship.verbs.transport.models import zero_shot_head
from transship_suites.materials import clip
from transship_suites.materials import image_sets as pictures
from transship_suites.materials.training import encode
from transship_suites.otmf.heads import Known
from transship_suites.otmf.names import BASE, CARRIED, INDIVIDUAL, OWN, PAPER
from transship_suites.otmf.trajectory import Arrival, final_accuracies, follow
from transship_suites.runner import Case, Context, Measurement

if TYPE_CHECKING:
    from transship.data import Dataset

KINDS = (OWN, PAPER, CARRIED)
SCALE = 100.0  # of the logits, as CLIP's own


class Pixels:
    """Images as a body takes them, decoded when a slice is asked for."""

    def __init__(self, rows: Dataset, reader: LoadedModel) -> None:
        self.rows, self.reader = rows, reader

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Tensor:
        images = [self.rows.inputs[row] for row in range(*part.indices(len(self)))]
        pixels: Tensor = self.reader.preprocess(images).inputs["pixel_values"]
        return pixels


class Here(nn.Module):
    """A body whose features come to the processor, where heads are fitted."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features."""
        made: Tensor = self.body(pixels).float().cpu()
        return made


class Bench:
    """Base, fine-tunes and image sets of one case; the seed draws the order of arrival."""

    def __init__(self, case: Case, context: Context) -> None:
        self.context, self.options = context, context.options
        self.family: Mapping[str, Any] = self.options["backbones"][case["backbone"]]
        names = list(self.options["tasks"])[: int(case["tasks"])]
        if case.seed:
            names = [names[place] for place in np.random.default_rng(case.seed).permutation(len(names))]
        self.reader = clip.load_clip(self.family["base"], device=context.device)
        self.base = clip.ImageTower(self.reader.model)
        self.live = copy.deepcopy(self.base)  # runs with whichever weights are asked for
        self.arrivals = [self._arrival(name) for name in names]

    def _arrival(self, task: str) -> Arrival:
        """Return a fine-tune with its head, a quarter of its training rows, and its test rows."""
        options, draw = self.options, self.context.seed("rows", task) % 2**31
        train = pictures.image_rows(task, "train")
        count = max(1, round(options["labelled"] * len(train)))
        known = train.take(min(count, options["most"] or count), draw)
        test = pictures.image_rows(task, "test", options["test"])
        words = zero_shot_head(self.reader, pictures.class_names(task), pictures.IMAGE_SETS[task].templates)
        head = LinearHead(SCALE * words.float().cpu(), torch.zeros(len(words)))
        body = copy.deepcopy(self.base).cpu()
        tuned = self.family["tuned"].format(task=task)
        body.vision_model.load_state_dict(_tower(tuned))
        inputs: Any = Pixels(known, self.reader)
        made = self.context.cached(
            "clip-logits",
            {"tuned": tuned, "weights": fingerprint(body.state_dict()), "rows": [task, len(known), draw]},
            lambda: {"logits": head(self._features(body.state_dict(), inputs)).numpy()},
            code=(clip.ImageTower, Pixels, zero_shot_head),
        )
        logits = torch.from_numpy(made["logits"])
        labels = torch.as_tensor(np.asarray(known.labels)).long()
        rows = Known(inputs, labels, logits, len(words))
        wanted = torch.as_tensor(np.asarray(test.labels)).long()
        tests: Any = Pixels(test, self.reader)
        return Arrival(task, body, head, rows, tests, wanted)

    def _features(self, weights: Mapping[str, Tensor], inputs: Any) -> Tensor:
        return encode(self._running(weights), inputs, batch=self.options["batch"])

    def _running(self, weights: Mapping[str, Tensor]) -> nn.Module:
        self.live.load_state_dict(dict(weights), strict=True)
        return Here(self.live)

    def _state(self, arrival: Arrival) -> dict[str, Tensor]:
        head = {"head.weight": arrival.head.weight, "head.bias": torch.zeros(len(arrival.head.weight))}
        return {**arrival.model.state_dict(), **head}

    def _images(self, images: Sequence[Any]) -> Tensor:
        pixels: Tensor = self.reader.preprocess(images).inputs["pixel_values"]
        return pixels

    def _drawn(self, arrival: Arrival, count: int) -> list[Any]:
        """Return raw images of a task for merging: some of its known rows, which come in a drawn order."""
        rows = arrival.known.inputs.rows  # type: ignore[attr-defined]
        return [rows.inputs[row] for row in range(min(count, len(rows)))]

    # -- measuring -----------------------------------------------------------------------------------------

    def measured(self, case: Case) -> Iterator[Measurement]:
        """Measure a case of any part."""
        if case["part"] == "bounds":
            yield from self._bounds()
        elif case["part"] == "joint":
            yield from self._joint(*self.options["joint"][case["method"]])
        else:
            method, options = self.options["methods"][case["method"]]
            alpha = {"alpha": case["alpha"]} if case["part"] == "sweep" else {}
            yield from self._continual(method, {**options, **alpha})

    def _bounds(self) -> Iterator[Measurement]:
        """The base under each kind of head, and the fine-tunes themselves."""
        body = self._running(self.base.state_dict())
        for heads, found in follow(self.arrivals, [body] * len(self.arrivals), kinds=KINDS).items():
            yield Measurement({"method": BASE, "heads": heads}, {"accuracy": found.acc})
        values = {
            one.name: one.accuracy(self._running(one.model.state_dict()), one.head) for one in self.arrivals
        }
        where: dict[str, Any] = {"method": INDIVIDUAL, "heads": OWN}
        yield Measurement(where, {"accuracy": sum(values.values()) / len(values)})
        for name, value in values.items():
            yield Measurement({**where, "task": name}, {"accuracy of the task": value})

    def _bodies(self, method: str, options: Mapping[str, Any], seconds: list[float]) -> Iterator[nn.Module]:
        """Yield the merged body after each arrival; what each merge took goes to `seconds`."""
        made = continual_method(method, options)
        fusion = Fusion(
            copy.deepcopy(self.base),
            made,
            heads="own",
            keep_inputs=None if made.replay else 0,
            evaluate=False,
            seed=self.context.seed("merge") % 2**31,
            preprocess=self._images,
            device=self.context.device,
        )
        for arrival in self.arrivals:
            start = time.perf_counter()
            fusion.add(self._state(arrival), self._drawn(arrival, self.options["inputs"]), name=arrival.name)
            seconds.append(time.perf_counter() - start)
            yield self._running({**self.base.state_dict(), **fusion.parameters})

    def _continual(self, method: str, options: Mapping[str, Any]) -> Iterator[Measurement]:
        seconds: list[float] = []
        found = follow(self.arrivals, self._bodies(method, options, seconds), kinds=KINDS)
        for heads, one in found.items():
            yield Measurement({"heads": heads}, {"accuracy": one.acc, "backward transfer": _number(one.bwt)})
            for arrival, value in zip(self.arrivals, one.matrix[-1], strict=True):
                where = {"heads": heads, "task": arrival.name}
                yield Measurement(where, {"accuracy of the task": value})
        yield Measurement({}, {"seconds": sum(seconds) / len(seconds)})

    def _joint(self, method: str, options: Mapping[str, Any]) -> Iterator[Measurement]:
        """All models merged at once; methods that read no inputs run on the processor."""
        from transship.verbs.merge.fusion.origin import ModuleOrigin
        from transship.verbs.merge.joint import JointTask, merge_updates_of
        from transship.verbs.merge.protocol import LearnedMethod, recipe_method

        kind = recipe_method(method)
        reads = kind is not None and issubclass(kind, LearnedMethod)
        device = self.context.device if reads else "cpu"
        origin = ModuleOrigin(copy.deepcopy(self.base), preprocess=self._images, device=device)
        models = []
        for arrival in self.arrivals:
            came = origin.admit(self._state(arrival), arrival.name)
            inputs = self._drawn(arrival, self.options["inputs"]) if reads else None
            models.append(JointTask(came.update, came.model.over(inputs)))
        seed = self.context.seed("merge") % 2**31
        settled = origin.backbone(models[0].change)
        update = merge_updates_of(settled, models, method, options=options, seed=seed)
        base = self.base.state_dict()
        merged = {**base, **{name: base[name].cpu() + one.cpu() for name, one in update.items()}}
        body = self._running(merged)
        for heads, value in final_accuracies(self.arrivals, body, (OWN, CARRIED)).items():
            yield Measurement({"heads": heads}, {"accuracy": value})
        for arrival in self.arrivals:
            found = arrival.accuracy(body, arrival.head)
            yield Measurement({"heads": OWN, "task": arrival.name}, {"accuracy of the task": found})


def _tower(name: str) -> dict[str, Tensor]:
    """Return the weights of a published image tower, by the names inside of it."""
    state = load_model(str(find_model(name)), name=name).model.state_dict()
    return {key.removeprefix("vision_model."): tensor for key, tensor in state.items()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
