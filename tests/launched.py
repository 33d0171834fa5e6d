"""What several processes share, as one process does it too: `python launched.py FOLDER` under a launcher.

Every function returns tensors by name. The tests run them in one process and in two, and compare.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORDS = [f"word{number}" for number in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CLASSES = 3


def make(folder: Path) -> None:
    """Write models that read the same words (source, two fine-tunes, a wider target) and labelled texts."""
    import pyarrow
    import pyarrow.parquet
    import tokenizers
    import transformers

    vocabulary = {word: row for row, word in enumerate([*SPECIAL, *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    )

    def bert(width: int, seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2}
        config = transformers.BertConfig(
            vocab_size=44, max_position_embeddings=32, num_attention_heads=2, num_labels=CLASSES, **sizes
        )
        model = transformers.BertForSequenceClassification(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        return model

    def save(model: Any, name: str) -> None:
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)

    source = bert(16, 0)
    save(source, "source")
    save(source.bert, "base")
    kept = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    for name, seed in (("tuned", 1), ("other", 2)):
        source.load_state_dict(kept)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape))
        save(source, name)
    save(bert(24, 5), "target")
    random = np.random.default_rng(0)
    for name in ("texts", "others"):
        rows = [" ".join(random.choice(WORDS, size=random.integers(3, 12))) for _ in range(90)]
        labels = random.integers(0, CLASSES, 90).tolist()
        pyarrow.parquet.write_table(
            pyarrow.table({"text": rows, "label": labels}), folder / f"{name}.parquet"
        )


def texts(folder: Path, name: str = "texts") -> list[str]:
    import pyarrow.parquet

    rows: list[str] = pyarrow.parquet.read_table(folder / f"{name}.parquet").column("text").to_pylist()
    return rows


def moments(folder: Path) -> dict[str, Tensor]:
    """Moments of sites, their number of inputs, and how `compare` judges them."""
    from transship.activations import collect, compare

    inputs = texts(folder)
    options: dict[str, Any] = {"tokens_per_input": 4, "batch_size": 8}
    collected = collect(
        folder / "source", folder / "target", None, inputs, parts=("aa", "bb", "ab"), **options
    )
    fields = {"inputs": torch.tensor(float(collected.inputs))}
    for name, right in collected.kept.items():
        fields[f"{name} count"] = torch.tensor(right.count)
        fields |= {f"{name} {number}": tensor for number, tensor in enumerate(right.tensors())}
    few = collect(folder / "source", folder / "target", None, inputs[:3], batch_size=8)
    fields["few"] = few.kept[min(few.kept)].part("ab")
    seen = compare(folder / "source", folder / "target", inputs, **options)
    fields["cka"] = torch.tensor(seen.stacks[0].cka)
    fields["agreement"] = torch.tensor([each.agreement for each in (*seen.layers, *seen.sites)])
    fields["rows"] = torch.tensor([seen.rows, seen.inputs])
    return fields


def transports(folder: Path) -> dict[str, Tensor]:
    """The update that every method which reads inputs makes, with its strength and its head."""
    import transship

    cases: dict[str, dict[str, Any]] = {
        "theseus": {"method": "theseus"},
        "gradient": {"method": "gradient"},
        "gradfix": {"method": "gradfix", "strength": 1.0, "target": "other"},
        "carry": {"method": "carry"},
        "kept": {"method": "carry", "keep": texts(folder, "others")},
        "path": {"method": "theseus", "path_steps": 2, "strength": 1.0},
        "auto": {"method": "auto"},
    }
    by_name = {}
    for name, options in cases.items():
        target = options.pop("target", "target")
        result = transship.transport(
            *(str(folder / each) for each in ("source", "tuned", target)),
            data=str(folder / "texts.parquet"),
            batches=5,
            batch_size=8,
            **options,
        )
        by_name[f"{name} strength"] = torch.tensor(result.strength)
        by_name |= {f"{name} {key}": change for key, change in result.moved.dense.items()}
        if result.head is not None:
            by_name[f"{name} head"] = result.head.weight
        by_name[f"{name} scores"] = torch.tensor([score for _, score in result.choice.curve])
    return by_name


def merges(folder: Path) -> dict[str, Tensor]:
    """The joint update that every method of recipes with data learns, and what `weights: auto` finds."""
    from transship.verbs.merge.plan import plan
    from transship.verbs.merge.recipe.run.learning import learn, search_weights
    from transship.verbs.merge.recipe.run.tensors import Tensors

    quick = {"steps": 3, "batch_size": 5, "learning_rate": 1e-2}
    cases: dict[str, dict[str, Any]] = {
        "fisher": {},
        "regmean": {"batch_size": 8},
        "regmean++": {"batch_size": 8},
        "adamerging": quick,
        "concrete": quick,
        "otmf": {"iterations": 4, "batch_size": 7},
        "multitask": quick,
    }
    by_name = {}
    for method, parameters in cases.items():
        for name, change in learn(Tensors(plan(_recipe(folder, method, parameters=parameters)))).items():
            by_name[f"{method} {name}"] = change
    result = search_weights(Tensors(plan(_recipe(folder, "task_arithmetic", weights="auto"))))
    by_name["weights"] = torch.tensor([*result.factors, result.loss], dtype=torch.float64)
    return by_name


def _recipe(folder: Path, method: str, **more: Any) -> dict[str, Any]:
    models = [
        {
            "model": str(folder / name),
            "data": {
                "path": str(folder / f"{data}.parquet"),
                "column": "text",
                "label": "label",
                "inputs": 20,
            },
        }
        for name, data in (("tuned", "texts"), ("other", "others"))
    ]
    return {"merge_method": method, "models": models, "base_model": str(folder / "source"), **more}


def fusions(folder: Path) -> dict[str, Tensor]:
    """What continual merging makes of two fine-tunes: the merged vector, heads, and shifts."""
    from transship import data
    from transship.verbs.merge.fusion import Fusion

    by_name = {}
    for method in ("otmf", "regmean", "opcm"):
        options = {"iterations": 4, "batch_size": 7} if method == "otmf" else None
        fusion = Fusion(
            str(folder / "base"), method, options=options, heads="carried", keep_inputs=20, batch_size=6
        )
        for name, rows in (("tuned", "texts"), ("other", "others")):
            fusion.add(str(folder / name), data.load(str(folder / f"{rows}.parquet")), inputs=30)
        by_name |= {f"{method} {name}": tensor for name, tensor in fusion.vector.items()}
        for task in fusion.tasks:
            by_name[f"{method} head {task.name}"] = fusion.head(task.name).weight
        by_name[f"{method} shift"] = torch.tensor([*fusion.history[-1].shift.values()])
    return by_name


def adaptations(folder: Path) -> dict[str, Tensor]:
    """A small network trained on series: its losses and its weights."""
    import transship

    random = np.random.default_rng(1)
    model = transship.Recraft(
        backbone=str(folder / "base"), method="nft", base="none", steps=4, batch_size=7, tokens=8, cache=None
    )
    model.fit(random.normal(size=(40, 32)).astype(np.float32), np.arange(40) % 2)
    by_name = {name: tensor.detach() for name, tensor in model.adapted_.network.named_parameters()}
    losses = [[row["loss"], row["validation_loss"]] for row in model.adapted_.about["history"]]
    return by_name | {"losses": torch.tensor(losses)}


WORK = {
    "adaptations": adaptations,
    "moments": moments,
    "transports": transports,
    "merges": merges,
    "fusions": fusions,
}


def die_at(number: int, training: bool) -> None:
    """Let the last process be killed in its step of this number, in the midst of collecting or training."""
    from transship import parallel
    from transship.activations.step import Stepper
    from transship.verbs.adapt.train import loop

    where, name = (loop, "take_step") if training else (Stepper, "step")
    step, steps = getattr(where, name), iter(range(1, 1000))

    def counted(*given: Any) -> Any:
        if next(steps) == number and parallel.rank() == parallel.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*given)

    setattr(where, name, counted)


def main(folder: Path, *names: str) -> None:
    from safetensors.torch import save_file

    from transship import parallel

    parallel.join()
    for name in names or WORK:
        by_name = {key: tensor.contiguous() for key, tensor in WORK[name](folder).items()}
        save_file(by_name, folder / f"{name}-{parallel.rank()}.safetensors")
    parallel.leave()


def run_commands(file: Path) -> None:
    """Run commands one after another as `python -m transship` runs one; each prints one line of JSON."""
    import contextlib
    import io
    import json

    from transship import parallel
    from transship.cli import main as command

    parallel.join()
    leave, parallel.leave = parallel.leave, parallel.wait  # a process that has left cannot join again
    for words in json.loads(file.read_text()):
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            command(words)
        if parallel.is_main():
            print(json.dumps(json.loads(stream.getvalue())), flush=True)
        assert parallel.is_main() or not stream.getvalue(), "the others are silent"
    leave()


if __name__ == "__main__":
    if sys.argv[1] == "commands":
        run_commands(Path(sys.argv[2]))
    elif sys.argv[1] == "die":
        from transship.cli import main as command

        die_at(int(sys.argv[2]), training=sys.argv[3] == "adapt")
        command(sys.argv[3:])
    else:
        main(Path(sys.argv[1]), *sys.argv[2:])
