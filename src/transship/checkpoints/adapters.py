"""Writing a low-rank update as a PEFT LoRA adapter folder, which `peft.PeftModel.from_pretrained` loads.

The factors carry their scale, so the adapter's α equals its rank everywhere and PEFT multiplies by one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from transship.atomic import atomic_folder
from transship.checkpoints.card import ModelCard, as_json, public_name
from transship.checkpoints.checkpoint import Checkpoint, Layout
from transship.checkpoints.claims import part_of
from transship.checkpoints.dtypes import Array, Floats, find_dtype
from transship.checkpoints.renaming import empty_model, names_in_memory
from transship.checkpoints.update import Update
from transship.checkpoints.weightfile import quote
from transship.checkpoints.write import TensorPlan, write_file
from transship.errors import CheckpointError

_TASKS = (
    ("ForCausalLM", "CAUSAL_LM"),
    ("LMHeadModel", "CAUSAL_LM"),
    ("ForSequenceClassification", "SEQ_CLS"),
    ("ForTokenClassification", "TOKEN_CLS"),
    ("ForQuestionAnswering", "QUESTION_ANS"),
    ("ForConditionalGeneration", "SEQ_2_SEQ_LM"),
)


def write_adapter(
    folder: str | os.PathLike[str],
    update: Update,
    *,
    dtype: str = "float32",
    dense: Literal["refuse", "save"] = "refuse",
    prefix: str = "",
    task_type: str | None = None,
    layouts: Mapping[str, Layout] | None = None,
    card: ModelCard | None = None,
    force: bool = False,
    sync: bool = True,
) -> Path:
    """Write a low-rank update as a PEFT adapter, atomically, and return its path.

    Args:
        dense: what to do with tensors whose change has no factors, and with tensors that the base has not:
            refuse, or save their modules in full (PEFT's `modules_to_save`).
        prefix: stands before the base's names in the model that will carry the adapter (`bert.` when the
            base is a bare model and the adapter goes onto a headed one).
        task_type: PEFT's name of the task; by default what the base's architecture suggests.
        layouts: how modules hold their weights, where it is not to be taken from the update.
    """
    if module := next((part_of(name) for name in (*update.names, *update.added) if part_of(name)), ""):
        raise CheckpointError(
            f"the module {module} changes, and PEFT has no place for it",
            where="adapter",
            fix="write a full checkpoint instead",
        )
    kind = find_dtype(dtype).name
    spoken = _names_for_peft(update, prefix)
    plans, ranks, by_module, biases, in_full = _sorted(update, layouts or {}, spoken, kind)
    saved = _saved(update, in_full, spoken, kind, dense)
    if biases:
        plans += _bias_plans(update, by_module, biases, spoken, kind)
    if not plans and not saved:
        raise CheckpointError("the update changes nothing", where=str(folder), fix="give one with factors")
    modules = sorted({plan.name.removeprefix("base_model.model.").rpartition(".")[0] for plan in saved})
    config = _config(update.base, ranks, by_module, modules, task_type) | {
        "lora_bias": bool(biases),
        "ensure_weight_tying": update.base is not None
        and any(kept in update.names for kept in update.base.tied.values()),
    }
    needs = sum(plan.nbytes(plan.dtype) for plan in (*plans, *saved))
    with atomic_folder(folder, force=force, needs=needs, sync=sync) as place:
        texts = {"adapter_config.json": as_json(config), **(card.files() if card else {})}
        for file, text in texts.items():
            (place / file).write_text(text, "utf-8")
        write_file(place / "adapter_model.safetensors", [*plans, *saved])
    return Path(folder)


def _sorted(
    update: Update, layouts: Mapping[str, Layout], spoken: Callable[[str], str], kind: str
) -> tuple[list[TensorPlan], dict[str, int], dict[str, Layout], dict[str, str], list[str]]:
    """Return the factors to write, their ranks and layouts, biases beside factors by module, and the rest."""
    ranks: dict[str, int] = {}
    plans: list[TensorPlan] = []
    by_module: dict[str, Layout] = {}
    in_full: list[str] = []
    for name in update.names:
        pair = update.factors(name)
        if pair is None or not name.endswith(".weight"):
            in_full.append(name)
        elif pair[0].shape[1]:
            module = spoken(name).removesuffix(".weight")
            by_module[module] = layouts.get(name) or update.layout(name)
            ranks[module] = pair[0].shape[1]
            plans += _factor_plans(module, by_module[module], *pair, update.shape(name), kind)
    biases = {
        spoken(name).removesuffix(".bias"): name
        for name in in_full
        if name.endswith(".bias")
        and by_module.get(spoken(name).removesuffix(".bias"), "embedding") != "embedding"
    }
    in_full = [name for name in in_full if name not in biases.values()]
    return plans, ranks, by_module, biases, in_full


def _names_for_peft(update: Update, prefix: str) -> Callable[[str], str]:
    """Return what turns a tensor's name in the file into that of the parameter in memory, which PEFT uses."""
    base = update.base
    model = empty_model(base.config) if base is not None else None
    if base is None or model is None:
        return lambda name: prefix + name
    renamed = names_in_memory([*update.added, *base.tensors], model)
    there = {stored: name for name, stored in renamed.items()}
    return lambda name: prefix + there.get(name, name)


def _factor_plans(
    module: str, layout: Layout, up: Floats, down: Floats, shape: tuple[int, ...], dtype: str
) -> Iterator[TensorPlan]:
    """Yield A [rank, in] and B [out, rank] of one module, as its layout stores them."""
    rank = up.shape[1]
    first, second = (down, up) if layout == "linear" else (up.T, down.T)
    if len(shape) > 2:  # a convolution: A has its kernel, B is one by one
        first, second = down.reshape(rank, *shape[1:]), up.reshape(shape[0], rank, *[1] * (len(shape) - 2))
    ending = "lora_embedding_{}" if layout == "embedding" else "lora_{}.weight"
    for part, values in (("A", first), ("B", second)):
        yield _held(f"base_model.model.{module}.{ending.format(part)}", np.ascontiguousarray(values), dtype)


def _bias_plans(
    update: Update,
    modules: Mapping[str, Layout],
    biases: Mapping[str, str],
    spoken: Callable[[str], str],
    dtype: str,
) -> Iterator[TensorPlan]:
    """Yield what B adds to the bias of every module: PEFT has it for all modules or for none."""
    base = update.base
    stored = {} if base is None else {spoken(name): base.info(name).shape for name in base.tensors}
    for module, layout in modules.items():
        shape = stored.get(f"{module}.bias")
        if layout == "embedding" or shape is None:
            raise CheckpointError(
                f"biases of other modules change, and {quote(module)} has none",
                where="adapter",
                fix="save the modules whose biases change in full, or write a full checkpoint",
            )
        values = update.dense(biases[module]) if module in biases else np.zeros(shape, np.float32)
        yield _held(f"base_model.model.{module}.lora_B.bias", values, dtype)


def _saved(
    update: Update,
    names: list[str],
    spoken: Callable[[str], str],
    dtype: str,
    dense: Literal["refuse", "save"],
) -> list[TensorPlan]:
    """Return whole modules with their new values: changes without factors, and what the base has not."""
    if (names or update.added) and dense == "refuse":
        example = quote((names or list(update.added))[0])
        raise CheckpointError(
            f"{len(names) + len(update.added)} tensors have no low-rank factors, such as {example}",
            where="adapter",
            fix="write a full checkpoint instead, factorise them first, or save them in full",
        )
    base, values = update.base, {name: read() for name, read in update.added.items()}
    if names and base is None:
        raise CheckpointError(
            "an update without a base has no full tensors", where="adapter", fix="give its base"
        )
    modules = {name.rpartition(".")[0] for name in names}
    for name in base.tensors if base is not None else ():
        if base is not None and name.rpartition(".")[0] in modules:
            change = update.dense(name) if name in update else np.float32(0)
            values[name] = base.read(name) + change
    for alias, kept in (base.tied if base is not None else {}).items():
        if kept in values:  # PEFT unties what it saves, so that the alias needs the new values as well
            values[alias] = values[kept]
    return [_held(f"base_model.model.{spoken(name)}", array, dtype) for name, array in values.items()]


def _held(name: str, values: Array, dtype: str) -> TensorPlan:
    return TensorPlan(name, values.shape, dtype, lambda: values)


def _config(
    base: Checkpoint | None,
    ranks: Mapping[str, int],
    layouts: Mapping[str, Layout],
    saved: list[str],
    task_type: str | None,
) -> dict[str, Any]:
    common = Counter(ranks.values()).most_common(1)[0][0] if ranks else 1
    # ^ and escapes: PEFT reads these keys as patterns for the end of a module's name
    special = {"^" + re.escape(module): rank for module, rank in ranks.items() if rank != common}
    return {
        "peft_type": "LORA",
        "task_type": task_type or _task(base),
        "base_model_name_or_path": public_name(base.name) if base is not None else None,
        "inference_mode": True,
        "r": common,
        "lora_alpha": common,
        "rank_pattern": special,
        "alpha_pattern": special,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": "conv1d" in layouts.values(),
        "init_lora_weights": True,
        "target_modules": _targets(sorted(ranks)),
        "modules_to_save": saved or None,
    }


def _targets(modules: list[str]) -> list[str] | str:
    """Return the modules as PEFT names them: endings, or a pattern where one is the ending of another."""
    endings = Counter(module[place:] for module in modules for place in _ends(module))
    if all(endings[module] == 1 for module in modules):
        return modules
    return "|".join(re.escape(module) for module in modules)


def _ends(module: str) -> list[int]:
    return [0, *(place + 1 for place, sign in enumerate(module) if sign == ".")]


def _task(base: Checkpoint | None) -> str | None:
    architectures = base.config.get("architectures") if base is not None else None
    if isinstance(architectures, list):
        for ending, task in _TASKS:
            if any(str(name).endswith(ending) for name in architectures):
                return task
    return None
