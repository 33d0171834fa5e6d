"""The config of a base whose adapter brings a head: as many labels as the head has rows."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from transship.verbs.merge.recipe.plan.layout import is_head

_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
_ARCHITECTURE = re.compile(r"(.+?)(LMHeadModel|Model|For[A-Z]\w*)")
_LAST = re.compile(r"(^|\.)(out_proj|classifier|score|qa_outputs)\.weight$")


def headed_config(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], adapter: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the base's config for the model that its adapter's head makes of it.

    Args:
        shapes: of the tensors that the adapter adds.
        adapter: its own config, which names the task or the class that it was trained on.
    """
    found = copy.deepcopy(dict(config))
    matrices = [name for name, shape in shapes.items() if is_head(name) and len(shape) == 2]
    last = next((name for name in matrices if _LAST.search(name)), None)
    if last is None:
        return found
    labels = shapes[last][0]
    if len(config.get("id2label") or {}) != labels:
        names = [f"LABEL_{number}" for number in range(labels)]
        found["id2label"] = {str(number): name for number, name in enumerate(names)}
        found["label2id"] = {name: number for number, name in enumerate(names)}
        found.pop("num_labels", None)
    if made_by := _class(config.get("architectures"), adapter):
        found["architectures"] = [made_by]
    return found


def _class(named: Any, adapter: Mapping[str, Any]) -> str | None:
    """Return the class that the adapter was trained on; PEFT keeps it where there is no name for the task."""
    mapping = adapter.get("auto_mapping")
    if isinstance(mapping, Mapping) and isinstance(mapping.get("base_model_class"), str):
        return str(mapping["base_model_class"])
    ending = _CLASSES.get(str(adapter.get("task_type")))
    match = _ARCHITECTURE.fullmatch(str(named[0])) if isinstance(named, list) and named else None
    return None if ending is None or match is None else match[1] + ending
