"""What `transship transport` writes: every method, and every kind of model, data and choice that it knows."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner
from torch import nn

from transship.registry import method_names

Job = Callable[[], None]
WORDS = [first + second for first in "bcdfgk" for second in ("ad", "en", "ip", "og", "un", "ar")]
SPECIAL = ["<pad>", "<unk>", "</s>"]
TAGS = ("O", "B-PER", "I-PER")
# variants of single methods that the defaults do not reach
OPTIONS: dict[str, tuple[str, ...]] = {
    "carry/none": ("carry", "body=none", "penalty=0.1"),
    "carry/identity": ("carry", "body=identity"),
    "gradfix/force": ("gradfix", "body=theseus", "force=yes"),
    "gradfix/gradient-max": ("gradfix", "body=gradient", "vote=max"),
    "gradfix/control": ("gradfix", "control=yes"),
    "gradient/alone": ("gradient", "blend=1"),
    "pinv-tikhonov/sides": ("pinv-tikhonov", "form=per-side", "penalty=0.1"),
    "theseus/paper": ("theseus", "hidden=0", "complete=svd"),
    "theseus/white": ("theseus", "whiten=0.5", "centre=yes", "complete=identity"),
    "transfusion/segments": ("transfusion", "residual=segments"),
}


def jobs(inputs: Path, out: Path) -> Iterator[tuple[str, Job]]:
    """Yield every job by name."""
    pictures(inputs)
    same, wide = (("a", "tuned", target) for target in ("same", "wide"))
    seen = ("--data", inputs / "seen.npz", "--batches", "2")
    run = partial(command, inputs, out)
    for name in method_names("transport"):
        yield f"method/{name}", run(f"method/{name}", same, *seen, "--method", name)
        if name not in ("gradfix", "identity", "transfusion"):
            plain = ("--data", inputs / "plain.npy", "--batches", "2")
            yield f"wide/{name}", run(f"wide/{name}", wide, *plain, "--method", name)
    for name, (method, *options) in OPTIONS.items():
        given = [part for option in options for part in ("-o", *option.split("="))]
        yield name, run(name, same, *seen, "--method", method, *given)
    yield "auto/labels", run("auto/labels", wide, *seen)
    yield (
        "auto/plain",
        run("auto/plain", same, "--data", inputs / "plain.npy", "--batches", "2", "--unlabelled"),
    )
    yield "auto/few", run("auto/few", same, "--data", inputs / "few.npy", "--batches", "1")
    for target in ("deeper", "shallow", "relative"):
        for depth in ("interpolate", "nearest", "skip"):
            name = f"depth/{target}-{depth}"
            method = "identity" if target == "relative" else "theseus"
            deep = ("a", "tuned", target)
            yield name, run(name, deep, *seen, "--method", method, "--depth", depth, "--strength", "1")
    yield "auto/relative", run("auto/relative", ("a", "tuned", "relative"), *seen)
    path = ("--method", "theseus", "--path-steps", "2")
    yield "path/auto", run("path/auto", wide, *seen, *path)
    yield "path/given", run("path/given", same, *seen, *path[2:], "--method", "carry", "--strength", "2")
    yield "path/choice", run("path/choice", wide, *seen, *path[2:], "--strength", "1")
    theseus = ("--method", "theseus", "--strength", "1")
    yield "roles/paper", run("roles/paper", wide, *seen, *theseus, "--roles", "paper")
    diagonal = ("--role", "norms", "diagonal", "--role", "head", "keep")
    yield "roles/diagonal", run("roles/diagonal", wide, *seen, *theseus, *diagonal)
    yield "shots", run("shots", wide, "--data", inputs / "seen.npz", *theseus, "--shots", "3")
    yield "tokens", run("tokens", wide, *seen, *theseus, "--tokens-per-input", "2", "--align", "mean")
    tests = ("--test", inputs / "test.npz", "--original", inputs / "old.npz")
    kept = ("--method", "carry", "--keep", inputs / "kept.npy", "--head-inputs", "80")
    yield "test/carry", run("test/carry", wide, *seen, *kept, *tests, "--warm-start", "4")
    yield "test/own", run("test/own", same, *seen, *theseus, *tests, "--warm-start", "4", "--seed", "3")
    yield "test/none", run("test/none", wide, *seen, *kept[:2], "-o", "body", "none", *tests)
    yield from texts(inputs, run)
    yield from clips(inputs, run)


def texts(inputs: Path, run: Any) -> Iterator[tuple[str, Job]]:
    """Yield the jobs on models that read text: adapters, words, values, vocabularies and bare encoders."""
    classes = ("ForSequenceClassification", {"num_labels": 3})
    trio(inputs, "text", classes, seed=0)
    adapter(inputs, "text-a", "text-lora")
    table(inputs / "text.csv", sentences(200, 4), [str(row % 3) for row in range(200)])
    text = ("--data", inputs / "text.csv", "--column", "text", "--label", "label", "--batches", "2")
    for method in ("theseus", "gradient", "carry", "random", "auto"):
        lora = ("text-a", "text-lora", "text-b")
        yield f"lora/{method}", run(f"lora/{method}", lora, *text, "--method", method, "--unlabelled")
    lora = ("text-a", "text-lora", "text-c")
    yield "lora/identity", run("lora/identity", lora, *text, "--method", "identity", "--strength", "0")
    other = ("text-a", "text-tuned", "text-c")
    yield "text/same", run("text/same", other, *text, "--method", "transfusion", "--strength", "1")
    yield "text/auto", run("text/auto", ("text-a", "text-tuned", "text-b"), *text)
    trio(inputs, "tag", ("ForTokenClassification", {"id2label": dict(enumerate(TAGS))}), seed=10, bare=True)
    lines, tagged = tags(120, 5), tags(40, 6)
    table(inputs / "tags.csv", *lines)
    table(inputs / "tags-test.csv", *tagged)
    words = ("--data", inputs / "tags.csv", "--column", "text", "--label", "label", "--batches", "2")
    for method in ("theseus", "gradient", "carry", "auto"):
        more = ("--method", method, "--test", inputs / "tags-test.csv")
        yield f"tagger/{method}", run(f"tagger/{method}", ("tag-a", "tag-tuned", "tag-b"), *words, *more)
    trio(inputs, "value", ("ForSequenceClassification", {"num_labels": 1}), seed=20)
    table(inputs / "values.csv", sentences(120, 7), [f"{row / 7:.2f}" for row in range(120)])
    values = ("--data", inputs / "values.csv", "--column", "text", "--label", "label", "--batches", "2")
    for method in ("theseus", "auto"):
        yield f"value/{method}", run(f"value/{method}", ("value-a", "value-tuned", "value-b"), *values)
    trio(inputs, "encoder", ("Model", {}), seed=30)
    for method in ("pinv", "auto"):
        bare = ("encoder-a", "encoder-tuned", "encoder-b")
        yield f"encoder/{method}", run(f"encoder/{method}", bare, *text[:4], "--method", method)
    trio(inputs, "mask", ("ForMaskedLM", {}), seed=40)
    yield "language/auto", run("language/auto", ("mask-a", "mask-tuned", "mask-b"), *text[:4])
    trio(inputs, "other", ("ForMaskedLM", {}), seed=50, words=WORDS[6:])
    strange = ("mask-a", "mask-tuned", "other-b")
    yield "language/strange", run("language/strange", strange, *text[:4], "--strength", "1")
    for kind in ("t5", "gpt2"):
        for place, (width, heads) in {"a": (16, 2), "b": (24, 4)}.items():
            save(spread(generator(kind, width, heads), len(place)), inputs / f"{kind}-{place}")
        save(nudge(generator(kind, 16, 2), 0.2), inputs / f"{kind}-tuned", like=inputs / f"{kind}-a")
        names = (f"{kind}-a", f"{kind}-tuned", f"{kind}-b")
        for method in ("theseus", "gradient"):
            name = f"{kind}/{method}"
            yield name, run(name, names, *text[:4], "--batches", "2", "--method", method)


def clips(inputs: Path, run: Any) -> Iterator[tuple[str, Job]]:
    """Yield the jobs on CLIP models behind zero-shot heads."""
    vocabulary = ["<pad>", "<unk>", "</s>", "a", "photo", "of", "drawing", "cat", "dog", "bird"]
    source = clip(16, 0)
    save(source, inputs / "clip-a", words=vocabulary)
    save(nudge(source, 0.2), inputs / "clip-tuned", words=vocabulary)
    save(clip(24, 1), inputs / "clip-b", words=vocabulary)
    (inputs / "classes.txt").write_text("cat\ndog\nbird\n", encoding="utf-8")
    rows = np.random.default_rng(2).normal(size=(120, 3, 28, 28)).astype(np.float32)
    label = np.array(["cat", "dog", "bird"])[np.arange(120) % 3]
    np.savez(inputs / "clip.npz", array=rows[:90], label=label[:90])
    np.savez(inputs / "clip-test.npz", array=rows[90:], label=label[90:])
    given = ("--data", inputs / "clip.npz", "--batches", "1", "--classes", inputs / "classes.txt")
    for method in ("theseus", "carry"):
        more = ("--test", inputs / "clip-test.npz", "--template", "a drawing of a {}", "--method", method)
        clip_names = ("clip-a", "clip-tuned", "clip-b")
        yield f"clip/{method}", run(f"clip/{method}", clip_names, *given, *more)


def command(inputs: Path, out: Path, name: str, models: tuple[str, str, str], *given: Any) -> Job:
    """Return a job that runs the command, and keeps the model and the summary that it writes."""

    def job() -> None:
        from transship.cli import group

        places = [*(str(inputs / model) for model in models), str(out / name / "model")]
        more = ["--prepared", str(inputs / "prepared"), "--json", "--report", str(out / name / "page.html")]
        (out / name).mkdir(parents=True)
        done = CliRunner().invoke(group, ["transport", *places, *map(str, given), *more])
        assert done.exit_code == 0, (name, done.output, done.exception)
        summary = json.loads(done.stdout)
        (out / name / "summary.json").write_text(json.dumps(summary), encoding="utf-8")

    return job


def pictures(inputs: Path) -> None:
    """Save image classifiers, fine-tunes of one and arrays with and without labels."""
    source = vit(16, 2, 0)
    tuned = nudge(source, 0.3)
    models = {"a": source, "tuned": tuned, "same": vit(16, 2, 1), "wide": vit(24, 2, 2)}
    models |= {"deeper": vit(24, 3, 3), "shallow": vit(16, 1, 4), "relative": vit(16, 3, 5)}
    state = dict(source.state_dict())
    for name in list(state):
        if ".layers.1." in name:
            state[name.replace(".layers.1.", ".layers.2.")] = state[name] * 1.01
    models["relative"].load_state_dict(state)
    for name, model in models.items():
        model.save_pretrained(inputs / name)
    for seed, (name, model, count) in enumerate(
        [("seen", tuned, 160), ("test", tuned, 40), ("old", models["wide"], 30)]
    ):
        rows = np.random.default_rng(seed).normal(size=(count, 1, 28, 28)).astype(np.float32)
        with torch.no_grad():
            label = model(torch.from_numpy(rows)).logits.argmax(1).numpy()
        np.savez(inputs / name, array=rows, label=label)
    plain = np.random.default_rng(9).normal(size=(200, 1, 28, 28)).astype(np.float32)
    np.save(inputs / "plain", plain)
    np.save(inputs / "few", plain[:30])
    np.save(inputs / "kept", plain[:50] + 3.0)


def vit(width: int, blocks: int, seed: int) -> nn.Module:
    """Return an image classifier with random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": blocks}
    image = {"image_size": 28, "patch_size": 14, "num_channels": 1, "num_labels": 3}
    return spread(ViTForImageClassification(ViTConfig(num_attention_heads=2, **shape, **image)), seed)


def bert(kind: str, width: int, seed: int, more: dict[str, Any], words: int = len(WORDS)) -> nn.Module:
    """Return a BERT with random weights."""
    import transformers

    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2}
    tokens = {"vocab_size": words + len(SPECIAL), "max_position_embeddings": 24}
    config = transformers.BertConfig(num_attention_heads=2, **shape, **tokens, **more)
    return spread(getattr(transformers, f"Bert{kind}")(config), seed)


def generator(kind: str, width: int, heads: int) -> nn.Module:
    """Return a generative model."""
    import transformers as library

    vocabulary = len(WORDS) + len(SPECIAL)
    if kind == "gpt2":
        shape = {"n_embd": width, "n_head": heads, "n_layer": 2, "n_positions": 24}
        return library.GPT2LMHeadModel(library.GPT2Config(vocab_size=vocabulary, **shape))
    shape = {"d_model": width, "d_kv": 8, "d_ff": 2 * width, "num_layers": 2, "num_heads": heads}
    config = library.T5Config(vocab_size=vocabulary, decoder_start_token_id=0, **shape)
    return library.T5ForConditionalGeneration(config)


def clip(width: int, seed: int) -> nn.Module:
    """Return a CLIP with random weights."""
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**tower, "vocab_size": 10, "max_position_embeddings": 16, "eos_token_id": 2}
    vision = {**tower, "image_size": 28, "patch_size": 14}
    return spread(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)), seed)


def spread(model: nn.Module, seed: int) -> nn.Module:
    """Return the model with weights so large that every layer matters."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draws)
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * noise)
    return model.eval()


def nudge(model: nn.Module, size: float) -> nn.Module:
    """Return a fine-tune: a copy, every weight moved by a share of its norm."""
    import copy

    tuned, draws = copy.deepcopy(model), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in tuned.parameters():
            noise = torch.randn(parameter.shape, generator=draws)
            parameter.add_(size * parameter.norm() * noise / noise.norm())
    return tuned


def trio(
    inputs: Path,
    name: str,
    kind: tuple[str, dict[str, Any]],
    *,
    seed: int,
    bare: bool = False,
    words: list[str] = WORDS,
) -> None:
    """Save a base, its fine-tune, a wider target (without a head, if `bare`) and one of the base's shape."""
    build = partial(bert, kind[0], more=kind[1], words=len(words))
    source = build(width=16, seed=seed)
    save(source, inputs / f"{name}-a", words=words)
    save(nudge(source, 0.2), inputs / f"{name}-tuned", words=words)
    wide = bert("Model", 24, seed + 1, {}, len(words)) if bare else build(width=24, seed=seed + 1)
    save(wide, inputs / f"{name}-b", words=words)
    save(build(width=16, seed=seed + 2), inputs / f"{name}-c", words=words)


def save(model: nn.Module, folder: Path, *, words: list[str] = WORDS, like: Path | None = None) -> None:
    """Save a model and its tokenizer; `like` takes the weights of another, moved a little."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if like is not None:
        model = nudge(type(model).from_pretrained(like), 0.2)
    model.save_pretrained(folder)
    listed = words if words[0] == "<pad>" else [*SPECIAL, *words]
    vocabulary = Tokenizer(
        models.WordLevel({word: row for row, word in enumerate(listed)}, unk_token="<unk>")
    )
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    longest = 16 if words[0] == "<pad>" else 24
    PreTrainedTokenizerFast(tokenizer_object=vocabulary, model_max_length=longest, **names).save_pretrained(
        folder
    )


def adapter(inputs: Path, base: str, name: str) -> None:
    """Save a LoRA adapter for a base."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(inputs / base)
    targets = ["query", "value", "intermediate.dense"]
    peft = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=targets))
    draws = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for key, parameter in peft.named_parameters():
            if "lora_" in key:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws))
    peft.save_pretrained(inputs / name)
    about = inputs / name / "adapter_config.json"  # an adapter's hash holds its base's name
    config = json.loads(about.read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
    about.write_text(json.dumps(config), encoding="utf-8")


def sentences(count: int, seed: int) -> list[str]:
    """Return drawn sentences of known words."""
    draws = np.random.default_rng(seed)
    return [" ".join(draws.choice(WORDS, draws.integers(4, 11))) for _ in range(count)]


def tags(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Return sentences, and a label for every word of each."""
    lines, draws = sentences(count, seed), np.random.default_rng(seed)
    return lines, [" ".join(draws.choice(TAGS, len(line.split()))) for line in lines]


def table(file: Path, texts: list[str], labels: list[str]) -> None:
    """Write texts and labels as CSV."""
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    file.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
