"""What `transship merge` writes: every method by recipe, with data, one after another; plans and status."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner

import transship as ts
from transship.cli import group
from transship.errors import TransshipError
from transship.registry import method_names

Job = Callable[[], None]
MAKER = Path(__file__).resolve().parents[1] / "verbs" / "merge" / "small_models.py"
WEIGHT = {"weight": 0.6}
# what a recipe of a method says beside its models, where it says anything
GIVEN: dict[str, dict[str, Any]] = {
    "ties": {"weight": 0.7, "density": 0.4},
    "dare_ties": {"weight": 0.7, "density": 0.6},
    "dare_linear": {"weight": 0.7, "density": 0.6},
    "della": {"weight": 0.7, "density": 0.6, "epsilon": 0.2},
    "della_linear": {"weight": 0.7, "density": 0.6, "epsilon": 0.2},
    "breadcrumbs": {"weight": 0.7, "density": 0.6, "gamma": 0.1},
    "breadcrumbs_ties": {"weight": 0.7, "density": 0.6, "gamma": 0.1},
    "task_arithmetic": {"weight": 0.7, "lambda": 0.8},
    "slerp": {"t": 0.3},
    "nearswap": {"t": 0.01},
    "sce": {"select_topk": 0.3},
    "passthrough": {"scale": 0.5},
    "ram": {"epsilon": 0.01},
    "ramplus_tl": {"epsilon": 0.01},
    "tsvm": {"lambda": 0.9},
    "linear": WEIGHT,
    "multislerp": WEIGHT,
    "nuslerp": WEIGHT,
}
ONE = ("slerp", "nearswap", "arcee_fusion", "passthrough")
NO_BASE = ("linear", "karcher", "passthrough")
SHORT = {"steps": 4, "learning_rate": 0.05, "batch_size": 8}
LEARNED: dict[str, dict[str, Any]] = {
    "adamerging": SHORT,
    "concrete": SHORT,
    "multitask": SHORT,
    "otmf": {"iterations": 6, "batch_size": 8},
    "fisher": {},
    "regmean": {},
    "regmean++": {},
}
CONTINUAL: dict[str, list[tuple[str, Any]]] = {
    "adamerging": list(SHORT.items()),
    "concrete": list(SHORT.items()),
    "otmf": [("iterations", 6), ("batch-size", 8)],
    "ties": [("density", 0.4)],
    "fisher": [("inputs", 12)],
    "regmean": [("inputs", 12), ("batch-size", 6)],
}
REMOVING = ("average", "base", "fisher", "regmean", "task-arithmetic")
FRESH = ("average", "base", "opcm", "otmf", "task-arithmetic", "ties", "tsvm")


def jobs(inputs: Path, out: Path) -> Iterator[tuple[str, Job]]:
    """Yield what is pinned; the inputs' folder becomes the working folder, so that recipes name no other."""
    make_models(inputs)
    os.chdir(inputs)
    yield from free_of_data(out)
    yield from recipes(out)
    yield from with_data(out)
    yield from one_after_another(out)


def free_of_data(out: Path) -> Iterator[tuple[str, Job]]:
    """Yield a recipe of every method that reads no data, in float32 and as it is stored."""
    for plain in method_names("merge"):
        method = plain.replace("-plus-plus", "++").replace("-", "_")
        if method in LEARNED or not known(method):
            continue
        models = [{"model": "llama-a"}] if method in ONE else [{"model": "llama-a"}, {"model": "llama-b"}]
        recipe: dict[str, Any] = {"merge_method": method, "models": models, "seed": 3}
        if method not in NO_BASE:
            recipe["base_model"] = "llama-base"
        if method in GIVEN:
            recipe["parameters"] = GIVEN[method]
        yield f"recipe/{method}", partial(save, {**recipe, "dtype": "float32"}, out / "recipe" / method)
        yield f"stored/{method}", partial(save, recipe, out / "stored" / method)


def known(method: str) -> bool:
    """Say whether a recipe may name the method."""
    try:
        ts.merge({"merge_method": method, "models": [{"model": "nowhere"}]})
    except TransshipError as error:
        return "there is no merge_method" not in str(error)
    return True


def recipes(out: Path) -> Iterator[tuple[str, Job]]:
    """Yield recipes with what recipes can say."""
    pair = [{"model": "llama-a"}, {"model": "llama-b"}]
    ties = {"merge_method": "ties", "base_model": "llama-base", "models": pair}
    filters = {
        "weight": [{"filter": "mlp", "value": [0.2, 0.9]}, {"value": 0.5}],
        "density": {"filter": "attn", "value": 0.3},
    }
    stacked = [
        {"sources": [{"model": "llama-a", "layer_range": [0, 3]}]},
        {"sources": [{"model": "llama-b", "layer_range": [1, 4]}]},
    ]
    mixed = [
        {
            "sources": [{"model": f"llama-{name}", "layer_range": [0, 4]} for name in "ab"],
            "parameters": {"t": [0, 0.5, 1]},
            "base_model": "llama-a",
        }
    ]
    lone = {"base_model": "llama-base", "models": [{"model": "llama-lora-a"}, {"model": "llama-lora-b"}]}
    text = """
name: half
merge_method: linear
models: [{model: gpt2-a, parameters: {weight: 0.25}}, {model: gpt2-b, parameters: {weight: 0.75}}]
---
merge_method: slerp
base_model: gpt2-base
models: [{model: half}]
parameters: {t: 0.4}
"""
    words = {"merge_method": "linear", "base_model": "llama-base", "parameters": WEIGHT}
    words["models"] = [{"model": "llama-a"}, {"model": "llama-words"}]
    heads = {"merge_method": "task_arithmetic", "base_model": "bert-base", "parameters": WEIGHT}
    heads["models"] = [{"model": "bert-mood"}, {"model": "bert-topic"}]
    t5 = [
        {"sources": [{"model": "t5-a", "layer_range": [0, 2]}, {"model": "t5-base", "layer_range": [0, 2]}]}
    ]
    both = {"encoder": {"slices": t5}, "decoder": {"models": [{"model": "t5-a"}, {"model": "t5-base"}]}}
    for name, recipe in {
        "filters": {**ties, "parameters": filters},
        "global-trim": {**ties, "parameters": {"weight": 1.0, "density": 0.3, "trim": "global"}},
        "rescaled": {**ties, "parameters": {"weight": 1.0, "density": 0.3, "rescale": True}},
        "as-mergekit": {**ties, "arithmetic": "mergekit", "parameters": {"weight": 0.7, "density": 0.4}},
        "density-dare": {
            **ties,
            "merge_method": "dare_ties",
            "parameters": {"weight": 0.5, "density": 0.5, "rescale_by": "density"},
        },
        "rows-of-nuslerp": {
            **ties,
            "merge_method": "nuslerp",
            "parameters": {**WEIGHT, "nuslerp_flatten": False},
        },
        "columns-of-nuslerp": {
            **ties,
            "merge_method": "nuslerp",
            "parameters": {**WEIGHT, "nuslerp_flatten": False, "nuslerp_row_wise": True},
        },
        "rows-of-stock": {**ties, "merge_method": "model_stock", "parameters": {"filter_wise": True}},
        "stacked": {"merge_method": "passthrough", "slices": stacked},
        "mixed-layers": {"merge_method": "slerp", "slices": mixed},
        "half": {**ties, "parameters": {"weight": 0.7, "density": 0.4}, "out_dtype": "float16"},
        "three": {
            "merge_method": "linear",
            "models": [
                {"model": f"llama-{name}", "parameters": {"weight": weight}}
                for name, weight in (("a", 1), ("b", 2), ("c", 3))
            ],
        },
        "adapters": {**lone, "merge_method": "linear", "parameters": WEIGHT},
        "adapters-of-rank": {**lone, "merge_method": "task_arithmetic", "parameters": WEIGHT, "lora_rank": 3},
        "base-and-adapters": {
            "merge_method": "task_arithmetic",
            "base_model": "llama-base",
            "models": [{"model": "llama-base+llama-lora-a"}, {"model": "llama-base+llama-lora-b"}],
            "parameters": WEIGHT,
        },
        "of-recipes": text,
        "union": {**words, "tokenizer_source": "union"},
        "words-of-base": {**words, "tokenizer_source": "base"},
        "token-rules": {
            **words,
            "tokenizer": {
                "source": "union",
                "tokens": {"new1": {"source": "llama-words", "force": True}},
                "pad_to_multiple_of": 16,
            },
            "chat_template": "chatml",
        },
        "task-heads": heads,
        "modules": {"merge_method": "linear", "modules": both, "parameters": WEIGHT},
        "pictures": {
            "merge_method": "della",
            "base_model": "vit-base",
            "models": [{"model": "vit-a"}, {"model": "vit-b"}],
            "parameters": {"weight": 0.5, "density": 0.5},
        },
        "kept-extra": {
            "merge_method": "linear",
            "models": [{"model": "bert-a"}, {"model": "bert-b"}],
            "heads": "per_task",
            "parameters": WEIGHT,
        },
    }.items():  # fmt: skip
        yield f"recipes/{name}", partial(save, recipe, out / "recipes" / name)
        yield f"plans/{name}.json", partial(planned, recipe, out / "plans" / f"{name}.json")
    yield "jobs-and-report", partial(run_by_command, ties, out / "jobs-and-report")


def save(recipe: Any, folder: Path) -> None:
    """Carry a recipe out."""
    ts.merge(recipe).save(folder)


def planned(recipe: Any, file: Path) -> None:
    """Keep a plan, as JSON and as text, as the command line prints it."""
    Path("planned.yaml").write_text(recipe if isinstance(recipe, str) else json.dumps(recipe))
    record = json.loads(command("plan", "planned.yaml", "--json"))
    file.write_text(json.dumps({"plan": record, "text": command("plan", "planned.yaml").splitlines()}))


def run_by_command(recipe: dict[str, Any], folder: Path) -> None:
    """Run a recipe with the command line's options, and keep what it prints."""
    recipe = {**recipe, "merge_method": "dare_linear", "parameters": {"weight": 0.5, "density": 0.5}}
    Path("run.yaml").write_text(json.dumps(recipe))
    printed = command("run", "run.yaml", folder, "--seed", 7, "--jobs", 2, "--memory", "2GB", "--json")
    (folder / "printed.json").write_text(printed)
    command("run", "run.yaml", folder / "again", "--report", folder / "page.html")


def with_data(out: Path) -> Iterator[tuple[str, Job]]:
    """Yield a recipe of every method that reads data, searched weights and fitted heads."""
    models = [{"model": name, "data": f"{name}.npz"} for name in ("shape", "tone")]
    labelled = [
        {"model": name, "data": {"path": f"{name}.npz", "label": "labels"}} for name in ("shape", "tone")
    ]
    base = {"base_model": "plain", "data": {"column": "inputs"}, "seed": 2, "models": models}
    for method, parameters in LEARNED.items():
        recipe = {**base, "merge_method": method, "parameters": parameters}
        if method == "multitask":
            recipe["models"] = labelled
        yield f"learned/{method}", partial(learned, recipe, out / "learned" / method)
    arithmetic = {**base, "merge_method": "task_arithmetic", "parameters": {"lambda": 0.9}}
    for name, more in {
        "weights": {"weights": "auto"},
        "weights-by-entropy": {"weights": {"search": "entropy", "rounds": 1}},
        "weights-by-agreement": {"weights": {"search": "agreement", "rounds": 1}},
        "carried": {"heads": "carried", "parameters": WEIGHT},
        "polished": {"heads": "carried_polished", "parameters": WEIGHT},
        "tuned": {"heads": "tuned", "parameters": WEIGHT, "models": labelled},
    }.items():
        yield f"learned/{name}", partial(learned, {**arithmetic, **more}, out / "learned" / name)
    batch = {**base, "merge_method": "fisher", "parameters": {"definition": "batch", "weight": 0.5}}
    yield "learned/fisher-batch", partial(learned, batch, out / "learned" / "fisher-batch")
    text = [{"model": f"task-{n}", "data": {"path": f"data-{n}.jsonl", "inputs": 20}} for n in range(2)]
    texts = {"merge_method": "regmean", "base_model": "texts", "models": text}
    yield "learned/texts", partial(learned, texts, out / "learned" / "texts")


def learned(recipe: dict[str, Any], folder: Path) -> None:
    """Carry a recipe with data out by the command line."""
    Path("learned.yaml").write_text(json.dumps(recipe))
    printed = command("run", "learned.yaml", folder, "--json")
    (folder / "printed.json").write_text(printed)


def one_after_another(out: Path) -> Iterator[tuple[str, Job]]:
    """Yield a fusion of three models by every method, with labels, kept inputs, removal and fresh heads."""
    for method in continual_methods():
        yield f"fusion/{method}", partial(fusion, out / "fusion" / method, method, "carried-polished", "own")
        if method in FRESH:
            yield f"heads/{method}", partial(fusion, out / "heads" / method, method, "tuned-fresh", "tuned")
    yield "fusion-auto", partial(automatic, out / "fusion-auto", "0")
    yield "fusion-kept", partial(automatic, out / "fusion-kept", "16")
    yield "fusion-validated", partial(automatic, out / "fusion-validated", "16", "validation")
    yield "fusion-in-memory", partial(in_memory, out / "fusion-in-memory")


def continual_methods() -> list[str]:
    """Return the methods that the command line can start a fusion with."""
    entries = []
    for name in sorted({*method_names("merge"), "average", "base", "opcm"}):
        with contextlib.suppress(TransshipError):
            ts.Fusion("texts", name, keep_inputs=4)
            entries.append(name)
    return entries


def fusion(folder: Path, method: str, *heads: str) -> None:
    """Let three fine-tunes join by the command line, and let the second leave where it can."""
    options = [word for name, value in CONTINUAL.get(method, []) for word in ("-o", name, value)]
    kinds = [word for kind in heads for word in ("--heads", kind)]
    command("start", folder, "--base", "texts", "--method", method, "--keep-inputs", 24, *kinds, *options)
    for number in range(3):
        command("add", folder, f"task-{number}", "--data", f"data-{number}.jsonl")
    printed = command("status", folder, "--json")
    text = command("status", folder)
    if method in REMOVING:
        command("remove", folder, "task-1", "--data", "data-1.jsonl")
    (folder / "printed.json").write_text(printed)
    (folder / "printed.txt").write_text(text.replace(str(folder.parents[1]), ""))


def automatic(folder: Path, kept: str, strength: str = "auto") -> None:
    """Let fine-tunes and an adapter join by the recommended method."""
    start = (
        "--base",
        "texts",
        "--keep-inputs",
        kept,
        "--strength",
        strength,
        "--seed",
        5,
        "--finish",
        "none",
    )
    command("start", folder, *start)
    command("add", folder, "task-0", "--data", "data-0.jsonl", "--inputs", 20, "--name", "first")
    command("add", folder, "task-2", "--data", "data-2.jsonl", "--test", "data-2.jsonl", "--test-rows", 9)
    command("status", folder, "--report", folder / "page.html")
    (folder / "printed.json").write_text(command("status", folder, "--json"))


def in_memory(file: Path) -> None:
    """Let state dicts join a base in memory."""
    file.mkdir(parents=True)
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 12))
    rows = torch.randn(60, 10)
    together = ts.Fusion(base, "opcm", keep_inputs=20, heads=("carried", "tuned-fresh"))
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        tuned = {
            name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in base.state_dict().items()
        }
        tuned["head.weight"] = torch.randn(3, 12, generator=generator)
        labels = torch.arange(60) % 3
        together.add(
            tuned, rows[:40], labels=labels[:40], test=(rows[40:], labels[40:]), name=f"task-{number}"
        )
    (file / "summary.json").write_text(json.dumps(together.summary()))
    np.save(file / "outputs.npy", together.predict("task-0", rows).numpy())


def command(*words: Any) -> str:
    """Return what `transship merge …` prints to its standard output."""
    result = CliRunner().invoke(group, ["merge", *map(str, words)])
    if result.exit_code:
        raise AssertionError(f"merge {words}: {result.output}") from result.exception
    return result.stdout


def make_models(folder: Path) -> None:
    """Write the small models of the tests, two picture classifiers, and three text classifiers with data."""
    spec = importlib.util.spec_from_file_location("small_models", MAKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(folder)
    with contextlib.redirect_stderr(io.StringIO()):
        make_pictures(folder)
        make_texts(folder, module.tokenizer)


def make_pictures(folder: Path) -> None:
    """Write a ViT without a head, and two classifiers made of it, with inputs and labels."""
    import transformers

    sides = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=8, patch_size=4, **sides)
    base = transformers.ViTModel(config, add_pooling_layer=False)
    base.save_pretrained(folder / "plain")
    for number, name in enumerate(("shape", "tone")):
        task = copy.deepcopy(config)
        task.id2label = {place: f"{name}-{place}" for place in range(2 + number)}
        task.label2id = {label: place for place, label in task.id2label.items()}
        model = transformers.ViTForImageClassification(task)
        disturb(model, model.vit, base, number, 0.3)
        model.save_pretrained(folder / name)
        random = np.random.default_rng(number)
        images = random.standard_normal((24, 3, 8, 8)).astype(np.float32) + number
        np.savez(folder / f"{name}.npz", inputs=images, labels=np.arange(24) % (2 + number))


def make_texts(folder: Path, tokenizer: Callable[[list[str]], Any]) -> None:
    """Write an encoder, and three classifiers made of it with 2, 3 and 4 classes, with labelled texts."""
    import transformers

    words = [f"word{number}" for number in range(40)]
    sides = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = {"vocab_size": 50, "max_position_embeddings": 32, "pad_token_id": 3, **sides}
    torch.manual_seed(0)
    base = transformers.BertModel(transformers.BertConfig(**settings))
    base.save_pretrained(folder / "texts")
    tokenizer(words).save_pretrained(folder / "texts")
    for number in range(3):
        model = transformers.BertForSequenceClassification(
            transformers.BertConfig(**settings, num_labels=2 + number)
        )
        disturb(model, model.bert, base, 20 + number, 0.15)
        model.save_pretrained(folder / f"task-{number}")
        tokenizer(words).save_pretrained(folder / f"task-{number}")
        random = np.random.default_rng(number)
        rows = [
            {
                "text": " ".join(random.choice(words, size=6)),
                "label": int(random.integers(0, 2 + number)),
                "split": "train" if row < 40 else "test",
            }
            for row in range(60)
        ]
        (folder / f"data-{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def disturb(model: Any, inside: Any, base: Any, seed: int, share: float) -> None:
    """Give a classifier the base's weights with noise, and a head drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in base.named_parameters():
            spread = max(float(tensor.std(correction=0)), 0.02)
            noise = torch.randn(tensor.shape, generator=generator) * share * spread
            inside.get_parameter(name).copy_(tensor + noise)
        weight = model.classifier.weight
        weight.copy_(torch.randn(weight.shape, generator=generator))
