"""Published Flan-T5 fine-tunes on GLUE, merged one after another or together, and what they then answer."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transship.activations import load_model
from transship.data import find_model
from transship.numerics import chunks
from transship_suites.materials.glue import GLUE, questions
from transship_suites.otmf.merging import Merging, mean_of
from transship_suites.runner import Case, Context, Measurement

ANSWER = 10  # tokens, as FusionBench cuts answers


class FlanMerging(Merging):
    """Base and fine-tunes of one case; the seed draws the order of arrival and the rows that are read."""

    def __init__(self, case: Case, context: Context) -> None:
        super().__init__(case, context)
        self.tasks = self.in_seeds_order(self.options["tasks"])
        base = self.options["base"]
        self.loaded = load_model(str(find_model(base)), device=context.device, head=True, name=base)
        self.reading = {"features": encoder_mean}

    def _tuned(self, task: str) -> dict[str, Tensor]:
        name = self.options["tuned"].format(task=task)
        state: dict[str, Tensor] = load_model(str(find_model(name)), head=True, name=name).model.state_dict()
        return state

    def _read(self, texts: Sequence[str]) -> dict[str, Tensor]:
        tokens: Any = self.loaded.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=min(512, self.loaded.max_length),
            return_tensors="pt",
        )
        return {name: tokens[name].to(self.loaded.device) for name in ("input_ids", "attention_mask")}

    # -- measuring -----------------------------------------------------------------------------------------

    def measured(self) -> Iterator[Measurement]:
        """Measure a case of any part."""
        part, method = self.case["part"], self.case["method"]
        if part == "individual":
            yield from self._scores({task: self._tuned(task) for task in self.tasks})
        elif part == "joint":
            states = {task: self._tuned(task) for task in self.tasks}
            body = copy.deepcopy(self.loaded.model)
            merged = self.together(body, states, {}, *self.options["joint"][method])
            yield from self._scores(dict.fromkeys(self.tasks, merged))
        elif part == "base":
            yield from self._scores(dict.fromkeys(self.tasks, self.loaded.model.state_dict()))
        else:
            start = time.perf_counter()
            merged = self._continual(*self.options["methods"][method])
            seconds = (time.perf_counter() - start) / len(self.tasks)
            yield from self._scores(dict.fromkeys(self.tasks, merged))
            yield Measurement({}, {"seconds": seconds})

    def _continual(self, method: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
        body = copy.deepcopy(self.loaded.model)
        fusion = self.fusion(body, method, options, preprocess=self._read, device=self.context.device)
        for task in self.tasks:
            prompts, _ = questions(task, "train", self.options["inputs"], self.draw("rows", task))
            fusion.add(self._tuned(task), prompts, name=task)
        return dict(fusion.parameters)

    def _scores(self, weights: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Measurement]:
        """Yield the score of every task under its weights, and their mean."""
        module, scores, last = copy.deepcopy(self.loaded.model), {}, None
        for task, own in weights.items():
            if own is not last:
                _load(module, own)
                last = own
            prompts, wanted = questions(task, "test", self.options["test"], 0)
            scores[task] = GLUE[task].score(self._answers(module, prompts), wanted)
            yield Measurement({"task": task}, {"score of the task": scores[task]})
        yield Measurement({}, {"score": mean_of(scores)})

    def _answers(self, module: Any, prompts: Sequence[str]) -> list[str]:
        answers: list[str] = []
        with torch.no_grad():
            for part in chunks(len(prompts), self.options["batch"]):
                tokens = module.eval().generate(
                    **self._read(prompts[part]), max_length=ANSWER, do_sample=False, num_beams=1
                )
                answers += self.loaded.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return answers


def encoder_mean(module: nn.Module, batch: Any) -> Tensor:
    """Return the mean of the encoder's last states over tokens that are no padding [inputs, width]."""
    inputs = getattr(batch, "inputs", batch)
    encoder: Any = module.encoder
    states: Tensor = encoder(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
    ).last_hidden_state
    weights = inputs["attention_mask"].to(states.dtype)
    mean: Tensor = torch.einsum("itw,it->iw", states, weights) / weights.sum(1, keepdim=True)
    return mean


def _load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights into a module; of tensors that are tied one name is enough."""
    report = module.load_state_dict(dict(weights), strict=False)
    tied = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    tied -= {name for name, _ in module.named_parameters()}
    assert not report.unexpected_keys
    assert set(report.missing_keys) <= tied
