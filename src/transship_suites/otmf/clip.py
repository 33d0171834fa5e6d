"""Published CLIP fine-tunes merged one after another or together, with zero-shot heads.

The body is CLIP's image tower with its projection, its output of unit length; a task's head is 100 times the
unit vectors of its prompts, so that own heads give CLIP's zero-shot logits.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.activations import LoadedModel, load_model
from transship.data import Dataset, find_model
from transship.verbs.merge.fusion.origin import fingerprint
from transship.verbs.merge.protocol import LearnedMethod, recipe_method
from transship.verbs.merge.tasks.heads import LinearHead
from transship.verbs.transport.models import zero_shot_head
from transship_suites.materials import clip
from transship_suites.materials import image_sets as pictures
from transship_suites.materials.bodies import encode
from transship_suites.otmf.merging import Merging, mean_of, number
from transship_suites.otmf.names import BASE, CARRIED, INDIVIDUAL, OWN, PAPER
from transship_suites.otmf.trajectory import KnownInputs, TunedTask, final_accuracies, follow
from transship_suites.runner import Case, Context, Measurement

KINDS = (OWN, PAPER, CARRIED)
SCALE = 100.0  # of the logits, as CLIP's own


class Pixels:
    """Images as a body takes them, decoded when a slice is asked for."""

    def __init__(self, rows: Dataset, reader: LoadedModel) -> None:
        self.rows, self.reader = rows, reader

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Tensor:
        return pixels(self.reader, [self.rows.inputs[row] for row in range(*part.indices(len(self)))])


class Here(nn.Module):
    """A body whose features come to the processor, where heads are fitted."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.body(images)
        return features.float().cpu()


class ClipMerging(Merging):
    """Base, fine-tunes and image sets of one case; the seed draws the order of arrival."""

    def __init__(self, case: Case, context: Context) -> None:
        super().__init__(case, context)
        self.family: Mapping[str, Any] = self.options["backbones"][case["backbone"]]
        self.reader = clip.load_clip(self.family["base"], device=context.device)
        self.reading = {"preprocess": self._images, "device": context.device}
        self.base = clip.ImageTower(self.reader.model)
        self.live = copy.deepcopy(self.base)  # runs with whichever weights are asked for
        names = list(self.options["tasks"])[: int(case["tasks"])]
        self.arrivals = [self._arrival(name) for name in self.in_seeds_order(names)]

    def _arrival(self, task: str) -> TunedTask:
        """Return a fine-tune with its head, a quarter of its training rows, and its test rows."""
        options, draw = self.options, self.draw("rows", task)
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
        weights = body.state_dict()
        arrays = self.context.cached(
            "clip-logits",
            {"tuned": tuned, "weights": fingerprint(weights), "rows": [task, len(known), draw]},
            lambda: {"logits": head(encode(self._running(weights), inputs, batch=options["batch"])).numpy()},
            code=(clip.ImageTower, Pixels, zero_shot_head),
        )
        rows = KnownInputs(inputs, _labels(known), torch.from_numpy(arrays["logits"]), len(words))
        tests: Any = Pixels(test, self.reader)
        return TunedTask(task, body, head, rows, tests, _labels(test))

    def _running(self, weights: Mapping[str, Tensor]) -> nn.Module:
        self.live.load_state_dict({**self.base.state_dict(), **weights}, strict=True)
        return Here(self.live)

    def _state(self, arrival: TunedTask) -> dict[str, Tensor]:
        head = {"head.weight": arrival.head.weight, "head.bias": torch.zeros(len(arrival.head.weight))}
        return {**arrival.model.state_dict(), **head}

    def _images(self, images: Sequence[Any]) -> Tensor:
        return pixels(self.reader, images)

    def _inputs(self, arrival: TunedTask) -> list[Any]:
        """Return raw images of a task for merging: some of its known rows, which come in a drawn order."""
        rows = arrival.known.inputs.rows  # type: ignore[attr-defined]
        return [rows.inputs[row] for row in range(min(self.options["inputs"], len(rows)))]

    # -- measuring -----------------------------------------------------------------------------------------

    def measured(self) -> Iterator[Measurement]:
        """Measure a case of any part."""
        case = self.case
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
        body = self._running({})
        for heads, quality in follow(self.arrivals, [body] * len(self.arrivals), kinds=KINDS).items():
            yield Measurement({"method": BASE, "heads": heads}, {"accuracy": quality.acc})
        values = {
            task.name: task.accuracy(self._running(task.model.state_dict()), task.head)
            for task in self.arrivals
        }
        where: dict[str, Any] = {"method": INDIVIDUAL, "heads": OWN}
        yield Measurement(where, {"accuracy": mean_of(values)})
        for name, value in values.items():
            yield Measurement({**where, "task": name}, {"accuracy of the task": value})

    def _bodies(self, method: str, options: Mapping[str, Any], seconds: list[float]) -> Iterator[nn.Module]:
        """Yield the merged body after each arrival; what each merge took goes to `seconds`."""
        fusion = self.fusion(copy.deepcopy(self.base), method, options)
        for arrival in self.arrivals:
            start = time.perf_counter()
            fusion.add(self._state(arrival), self._inputs(arrival), name=arrival.name)
            seconds.append(time.perf_counter() - start)
            yield self._running(fusion.parameters)

    def _continual(self, method: str, options: Mapping[str, Any]) -> Iterator[Measurement]:
        seconds: list[float] = []
        qualities = follow(self.arrivals, self._bodies(method, options, seconds), kinds=KINDS)
        for heads, quality in qualities.items():
            metrics = {"accuracy": quality.acc, "backward transfer": number(quality.bwt)}
            yield Measurement({"heads": heads}, metrics)
            for arrival, value in zip(self.arrivals, quality.matrix[-1], strict=True):
                where = {"heads": heads, "task": arrival.name}
                yield Measurement(where, {"accuracy of the task": value})
        yield Measurement({}, {"seconds": sum(seconds) / len(seconds)})

    def _joint(self, method: str, options: Mapping[str, Any]) -> Iterator[Measurement]:
        """All models merged at once; methods that read no inputs run on the processor."""
        kind = recipe_method(method)
        reads = kind is not None and issubclass(kind, LearnedMethod)
        merged = self.together(
            copy.deepcopy(self.base),
            {task.name: self._state(task) for task in self.arrivals},
            {task.name: self._inputs(task) for task in self.arrivals} if reads else {},
            method,
            options,
            device=self.context.device if reads else "cpu",
        )
        body = self._running(merged)
        for heads, value in final_accuracies(self.arrivals, body, (OWN, CARRIED)).items():
            yield Measurement({"heads": heads}, {"accuracy": value})
        for arrival in self.arrivals:
            value = arrival.accuracy(body, arrival.head)
            yield Measurement({"heads": OWN, "task": arrival.name}, {"accuracy of the task": value})


def pixels(reader: LoadedModel, images: Sequence[Any]) -> Tensor:
    """Return pictures as CLIP's image tower takes them."""
    values: Tensor = reader.preprocess(images).inputs["pixel_values"]
    return values


def _labels(rows: Dataset) -> Tensor:
    return torch.as_tensor(np.asarray(rows.labels)).long()


def _tower(name: str) -> dict[str, Tensor]:
    """Return the weights of a published image tower, by the names inside of it."""
    state = load_model(str(find_model(name)), name=name).model.state_dict()
    return {key.removeprefix("vision_model."): tensor for key, tensor in state.items()}
