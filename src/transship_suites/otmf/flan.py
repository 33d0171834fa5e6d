"""Published Flan-T5 fine-tunes on GLUE, merged one after another or together, and what they then answer."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transship.activations import load_model
from transship.data import find_model
from transship.numerics import chunks
from transship.verbs.merge.fusion import Fusion
from transship.verbs.merge.protocol import continual_method
from transship_suites.materials.glue import GLUE, HUB
from transship_suites.runner import Case, Context, Measurement

ANSWER = 10  # tokens, as FusionBench cuts answers


def questions(task: str, split: str, most: int | None, seed: int) -> tuple[list[str], list[str]]:
    """Return prompts and wanted answers of a GLUE task, or `most` of them drawn by the seed."""
    asked = GLUE[task]
    rows = _table(task, asked.test if split == "test" else "train")
    order = np.random.default_rng(seed).permutation(len(rows)) if most is not None else range(len(rows))
    chosen = [rows[int(row)] for row in list(order)[:most]]
    return [asked.prompt.format(**row) for row in chosen], [asked.answer(row["label"]) for row in chosen]


@cache
def _table(task: str, split: str) -> list[dict[str, Any]]:
    """Return the rows of one split as they lie in their parquet files."""
    import pyarrow.parquet

    from transship.data import data_files, find_data
    from transship.errors import MissingError

    found = data_files(HUB)
    folder = (found[0] if found else find_data(HUB)) / task
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise MissingError(
            f"there is no {split}-*.parquet", where=str(folder), fix=f"fetch {HUB} from the hub again"
        )
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


class Bench:
    """Base and fine-tunes of one case; the seed draws the order of arrival and the rows that are read."""

    def __init__(self, case: Case, context: Context) -> None:
        self.context, self.options = context, context.options
        names = list(self.options["tasks"])
        if case.seed:
            names = [names[place] for place in np.random.default_rng(case.seed).permutation(len(names))]
        self.tasks = names
        base = self.options["base"]
        self.loaded = load_model(str(find_model(base)), device=context.device, head=True, name=base)

    def _tuned(self, task: str) -> dict[str, Tensor]:
        name = self.options["tuned"].format(task=task)
        made: dict[str, Tensor] = load_model(str(find_model(name)), head=True, name=name).model.state_dict()
        return made

    def _inputs(self, task: str) -> list[str]:
        seed = self.context.seed("rows", task) % 2**31
        return questions(task, "train", self.options["inputs"], seed)[0]

    def _read(self, texts: Sequence[str]) -> dict[str, Tensor]:
        made: Any = self.loaded.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=min(512, self.loaded.max_length),
            return_tensors="pt",
        )
        return {name: made[name].to(self.loaded.device) for name in ("input_ids", "attention_mask")}

    # -- measuring -----------------------------------------------------------------------------------------

    def measured(self, case: Case) -> Iterator[Measurement]:
        """Measure a case of any part."""
        if case["part"] == "individual":
            yield from self._scores({task: self._tuned(task) for task in self.tasks})
        elif case["part"] == "joint":
            method, options = self.options["joint"][case["method"]]
            yield from self._scores(dict.fromkeys(self.tasks, self._joint(method, options)))
        elif case["part"] == "base":
            yield from self._scores(dict.fromkeys(self.tasks, self.loaded.model.state_dict()))
        else:
            method, options = self.options["methods"][case["method"]]
            start = time.perf_counter()
            merged = self._continual(method, options)
            seconds = (time.perf_counter() - start) / len(self.tasks)
            yield from self._scores(dict.fromkeys(self.tasks, merged))
            yield Measurement({}, {"seconds": seconds})

    def _continual(self, method: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
        made = continual_method(method, options)
        fusion = Fusion(
            copy.deepcopy(self.loaded.model),
            made,
            heads="own",
            keep_inputs=None if made.replay else 0,
            evaluate=False,
            seed=self.context.seed("merge") % 2**31,
            features=encoder_mean,
            preprocess=self._read,
            device=self.context.device,
        )
        for task in self.tasks:
            fusion.add(self._tuned(task), self._inputs(task), name=task)
        return dict(fusion.parameters)

    def _joint(self, method: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
        from transship.verbs.merge.fusion.origin import ModuleOrigin
        from transship.verbs.merge.joint import JointTask, merge_updates_of

        origin = ModuleOrigin(copy.deepcopy(self.loaded.model), features=encoder_mean)
        came = [origin.admit(self._tuned(task), task) for task in self.tasks]
        models = [JointTask(one.update, one.model) for one in came]
        seed = self.context.seed("merge") % 2**31
        base = origin.backbone(models[0].change)
        update = merge_updates_of(base, models, method, options=options, seed=seed)
        return {name: tensor + update[name] for name, tensor in base.items()}

    def _scores(self, weights: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Measurement]:
        """Yield the score of every task under its weights, and their mean."""
        module = copy.deepcopy(self.loaded.model)
        found, last = {}, None
        for task, own in weights.items():
            if own is not last:
                _load(module, own)
                last = own
            prompts, wanted = questions(task, "test", self.options["test"], 0)
            answers = self._answers(module, prompts)
            found[task] = GLUE[task].score(answers, wanted)
            yield Measurement({"task": task}, {"score of the task": found[task]})
        yield Measurement({}, {"score": sum(found.values()) / len(found)})

    def _answers(self, module: Any, prompts: Sequence[str]) -> list[str]:
        made: list[str] = []
        with torch.no_grad():
            for part in chunks(len(prompts), self.options["batch"]):
                tokens = module.eval().generate(
                    **self._read(prompts[part]), max_length=ANSWER, do_sample=False, num_beams=1
                )
                made += self.loaded.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return made


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
