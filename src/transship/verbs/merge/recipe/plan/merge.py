"""What a recipe of models will do, known before any weight is read: tensors, tokens, bytes, memory."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transship import report
from transship.checkpoints import TensorInfo, find_dtype
from transship.numerics import INTERPRETER, format_bytes
from transship.verbs.merge.maths.operands import CHUNK
from transship.verbs.merge.recipe.plan.footprint import learning_bytes
from transship.verbs.merge.recipe.plan.layout import Layout, Span, config_value
from transship.verbs.merge.recipe.plan.models import Aligned, Model, Models
from transship.verbs.merge.recipe.plan.steps import Outcome, TensorStep
from transship.verbs.merge.recipe.plan.vocabulary import Vocabulary
from transship.verbs.merge.recipe.read.schema import Recipe
from transship.verbs.merge.recipe.read.sources import ModelReference

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class RecipeOutput:
    """What another recipe makes, as a model of this one.

    Attributes:
        label: what the outer recipe calls it.
        plan: the inner recipe's.
    """

    label: str
    plan: MergePlan

    @property
    def config(self) -> dict[str, Any]:
        return self.plan.config

    @property
    def folder(self) -> Path | None:
        """Return where the tokenizer files of the inner output come from."""
        return self.plan.models[self.plan.carrier].model.folder

    @functools.cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            step.name: TensorInfo(step.name, step.shape, step.dtype, _stored_bytes(step))
            for step in self.plan.steps
        }

    @property
    def tied(self) -> Mapping[str, str]:
        return self.plan.tied

    def fingerprint(self) -> str:
        return "(" + " ".join(model.model.fingerprint() for model in self.plan.models.values()) + ")"


@dataclass(frozen=True)
class MergePlan:
    """Everything that is known of a merge beforehand.

    Attributes:
        models: the opened models, by reference, in the recipe's order; base last unless it is listed.
        outcome: the steps, the heads that are kept apart, and tensors that are copied or left out.
        config: the output's `config.json`.
        vocabulary: the output's words, where the recipe has a rule for them.
        spans: which layers of the output come from which of the models.
    """

    recipe: Recipe
    models: Mapping[ModelReference, Aligned[Model]]
    layout: Layout
    outcome: Outcome
    config: dict[str, Any]
    vocabulary: Vocabulary | None = None
    spans: tuple[Span, ...] = ()

    @property
    def inner(self) -> tuple[RecipeOutput, ...]:
        """Return the models that other recipes make."""
        return tuple(model.model for model in self.models.values() if isinstance(model.model, RecipeOutput))

    @property
    def steps(self) -> tuple[TensorStep, ...]:
        """Return the steps in the order in which they are written."""
        return self.outcome.steps

    @property
    def merged(self) -> list[TensorStep]:
        return [step for step in self.steps if step.method is not None]

    @property
    def carrier(self) -> ModelReference:
        """Return the model whose tokenizer files go along."""
        return self.vocabulary.carrier if self.vocabulary is not None else self.recipe.donor

    @property
    def tied(self) -> dict[str, str]:
        """Return the output's aliases: the donor's, but for tensors that are written."""
        written = {step.name for step in self.steps}
        donor = self.models[self.recipe.donor].model
        return {alias: kept for alias, kept in donor.tied.items() if alias not in written and kept in written}

    @property
    def bytes_read(self) -> int:
        """Return the bytes of all inputs of all steps, each counted once for each step."""
        infos = [
            self.models[source.reference].info(source.tensor)
            for step in self._every_step()
            for source in step.sources
        ]
        return sum(info.nbytes for info in infos if info is not None)

    @property
    def bytes_written(self) -> int:
        """Return the bytes of the output's tensors."""
        return sum(map(_stored_bytes, self._every_step()))

    @property
    def largest_output(self) -> int:
        """Return the bytes of the output's largest tensor."""
        return max(map(_stored_bytes, self.steps), default=0)

    @property
    def peak_memory(self) -> int:
        """Return the most anonymous memory that the work takes with one thread, estimated from above."""
        return self.memory_of(1)

    def memory_of(self, jobs: int) -> int:
        """Return the most anonymous memory that `jobs` threads take, finished tensors not counted."""
        whole = max((4 * step.size * step.method.whole for step in self.steps if step.method), default=0)
        kept = sum(max((4 * step.size for step in model.plan.steps), default=0) for model in self.inner)
        widest = max((len(step.sources) for step in self.steps), default=1)
        inner = sum(model.plan.peak_memory - INTERPRETER for model in self.inner)
        return INTERPRETER + self._learning + jobs * (whole + kept + widest * 4 * 4 * CHUNK + inner)

    @functools.cached_property
    def _learning(self) -> int:
        if not self.recipe.runs_models:
            return 0
        method = next((step.method for step in self.merged), None)
        elements, models = sum(step.size for step in self.steps), max(len(step.inputs) for step in self.steps)
        return learning_bytes(self.recipe, method, self.models, elements, models)

    def _every_step(self) -> list[TensorStep]:
        return [*self.steps, *(step for steps in self.outcome.heads.values() for step in steps)]

    @property
    def facts(self) -> dict[str, Any]:
        words = self.vocabulary
        return {
            "method": self.recipe.method,
            "models": [str(reference) for reference in self.models],
            "config_from": str(self.recipe.donor),
            "tokenizer_from": str(self.carrier),
            "tensors": [step.facts() for step in self.steps],
            "heads": {
                str(reference): [step.facts() for step in steps]
                for reference, steps in self.outcome.heads.items()
            },
            "data": {str(ref): rule.path for ref in self.models if (rule := self.recipe.data_of(ref))},
            "copied": [f"{step.name} ({step.note})" for step in self.outcome.copied],
            "dropped": [f"{name} (not in {missing})" for name, missing in self.outcome.dropped.items()],
            "vocabulary": words and {"tokens": words.size, "rows": words.rows, "notes": list(words.notes)},
            "parameters": sum(step.size for step in self.steps),
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "peak_memory": self.peak_memory,
        }

    def page(self) -> report.Page:
        """Return what `transship merge plan` says."""
        models = ", ".join(map(str, self.models))
        return report.Page(f"{self.recipe.method} of {models}", sections=self.sections())

    def sections(self) -> list[report.Section]:
        merged = sum(step.action == "merge" for step in self.steps)
        lines = {
            "tensors": f"{merged} merged, {len(self.steps) - merged} copied",
            "config": f"from {self.recipe.donor}; tokenizer from {self.carrier}",
            "reads": format_bytes(self.bytes_read),
            "writes": format_bytes(self.bytes_written),
            "memory": f"at most {format_bytes(self.peak_memory)}",
        }
        blocks = [report.Facts(self.facts, shown=False), report.Facts(lines, in_json=False)]
        tensors = [[step.name, step.action, str(list(step.shape))] for step in self.steps]
        left = [[step.name, step.note] for step in self.outcome.copied]
        left += [[name, f"left out: not in {missing}"] for name, missing in self.outcome.dropped.items()]
        sections = [
            report.Section("", blocks),
            *_titled("Layers", ["layers", "from"], self._layers()),
            *_titled("Inner recipes", ["name", "method", "models"], self._inner_recipes()),
            *_titled("Tasks", ["model", "data", "head of its own"], self._tasks()),
            *_titled("Not merged", ["tensor", "why"], left),
        ]
        if self.vocabulary is not None:
            size = report.Text(f"{self.vocabulary.size} tokens in {self.vocabulary.rows} rows")
            notes = report.Table(["token"], [[note] for note in self.vocabulary.notes[:_MOST_TOKENS]])
            sections.append(report.Section("Words", [size, *([notes] if notes.rows else [])]))
        table = report.Table(["tensor", "action", "shape"], tensors)
        return [*sections, report.Section("Tensors", [table], detail=True)]

    def _layers(self) -> list[list[str]]:
        """Return which layers of which models make the output's, where the model has layers."""
        return [
            [
                _range(span.module, span.offset, span.layers),
                "; ".join(
                    f"{each.reference} {_range(None, each.first, span.layers)}"
                    for each in (*span.models, *([span.base] if span.base else []))
                ),
            ]
            for span in self.spans
            if span.prefix is not None
        ]

    def _inner_recipes(self) -> list[list[str]]:
        """Return the recipes that make models of this one, and those below them."""
        rows = []
        for output in self.inner:
            models = ", ".join(map(str, output.plan.models))
            rows += [[output.label, output.plan.recipe.method, models], *output.plan._inner_recipes()]
        return rows

    def _tasks(self) -> list[list[str]]:
        """Return the models that have data or keep a head, with what the recipe says of both."""
        how = f" ({self.recipe.heads})" if self.recipe.fits_heads else ""
        rows = []
        for reference in self.models:
            rule, head = self.recipe.data_of(reference), self.outcome.heads.get(reference, ())
            if rule is not None or head:
                names = ", ".join(step.name for step in head) + how if head else ""
                rows.append([str(reference), str(rule.path) if rule is not None else "", names])
        return rows


def _range(module: str | None, first: int, count: int) -> str:
    """Return layers as people count them, from 0 and with the last one."""
    name = f"{module}: " if module not in (None, "default") else ""
    return f"{name}{first}" if count == 1 else f"{name}{first} to {first + count - 1}"


_MOST_TOKENS = 200  # on a page; JSON has them all


def _titled(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[report.Section]:
    """Return a section of one table, or nothing where it has no rows."""
    return [report.Section(title, [report.Table(columns, rows)])] if rows else []


def _stored_bytes(step: TensorStep) -> int:
    return step.size * find_dtype(step.dtype).itemsize


def output_config(
    recipe: Recipe,
    models: Models,
    layout: Layout,
    spans: Sequence[Span],
    steps: Sequence[TensorStep],
    vocabulary: Vocabulary | None,
) -> dict[str, Any]:
    """Return the config of the output: the donor's, with as many layers and words as the output has."""
    donor = models[recipe.donor].model
    config = copy.deepcopy(donor.config)
    config.pop("_name_or_path", None)
    for stack in layout.stacks:
        mine = [span for span in spans if span.module == stack.module]
        layers = sum(span.layers for span in mine)
        if stack.keys and config_value(config, stack.keys) != layers:
            section = config
            for key in stack.keys[:-1]:
                section = section[key]
            _per_layer_lists(section, stack.layers, mine, models)
            section[stack.keys[-1]] = layers
    written = {step.name for step in steps}
    if any(alias in written for alias in donor.tied):
        _set(config, "tie_word_embeddings", False)
    if vocabulary is not None:
        _set(config, "vocab_size", vocabulary.rows)
        given = models[vocabulary.carrier].model.config
        config |= {key: given[key] for key in _SPECIAL if key in given and key in config}
    return config


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a key where the config has it, at the top or in its text part; at the top where neither has."""
    text = config.get("text_config")
    nested = isinstance(text, dict) and key in text
    if nested:
        config["text_config"][key] = value
    if key in config or not nested:
        config[key] = value


def _per_layer_lists(section: dict[str, Any], layers: int, spans: Sequence[Span], models: Models) -> None:
    """Give lists with an entry for each layer (such as `layer_types`) those of the layers in use."""
    for key, value in section.items():
        if isinstance(value, list) and len(value) == layers and "layer" in key:
            chosen: list[Any] = []
            for span in spans:
                first = span.models[0]
                given = models[first.reference].model.config
                own = given.get(key) or next(
                    (part[key] for part in given.values() if isinstance(part, dict) and key in part), value
                )
                chosen += own[first.first : first.first + span.layers]
            section[key] = chosen
