"""Models spread by a device map: the same numbers, and one sentence where weights must be in memory.

This machine has a CPU alone, so the parts of a map are the CPU and the disk: weights that rest there are meta
tensors, which accelerate's hooks bring while their module runs.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from transship.activations import collect, load_model
from transship.activations.batches import signature
from transship.activations.loading import values_of
from transship.errors import CheckpointError, OptionError

SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
PARTS = {"embeddings": "cpu", "encoder.layer.0": "cpu", "encoder.layer.1": "disk", "pooler": "disk"}
HEADED = {"classifier": "cpu"} | {f"bert.{part}": place for part, place in PARTS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, its fine-tune and a wider one, that read words."""
    import tokenizers
    import transformers

    place = tmp_path_factory.mktemp("maps")
    words = {word: row for row, word in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnop"])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    )
    for name, width, seed in (("a", 16, 0), ("b", 24, 1)):
        torch.manual_seed(seed)
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "vocab_size": 18, "num_labels": 3}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **sizes))
        model.save_pretrained(place / name)
        reader.save_pretrained(place / name)
        if name == "a":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01 * torch.randn(parameter.shape))
            model.save_pretrained(place / "tuned")
            reader.save_pretrained(place / "tuned")
    (place / "texts.txt").write_text("\n".join(sentences()))
    return place


def sentences() -> list[str]:
    generator = torch.Generator().manual_seed(0)
    letters = torch.randint(0, 16, (40, 6), generator=generator).tolist()
    return [" ".join("abcdefghijklmnop"[letter] for letter in row) for row in letters]


@pytest.mark.parametrize("spread", ["cpu", '{"": "cpu"}', PARTS, json.dumps(PARTS)])
def test_a_spread_model_has_the_same_moments(folder: Path, spread: Any, tmp_path: Path):
    whole, options = load_model(folder / "a"), {"tokens_per_input": None, "parts": ("aa", "bb", "ab")}
    other = load_model(folder / "b", device_map=spread)
    assert any(parameter.is_meta for parameter in other.model.parameters()) is ("disk" in str(spread))
    kept = collect(whole, load_model(folder / "b"), None, sentences(), **options).kept  # type: ignore[arg-type]
    collected = collect(whole, other, None, sentences(), folder=tmp_path / "state", **options)  # type: ignore[arg-type]
    assert collected.kept.keys() == kept.keys()
    for name, moments in kept.items():
        for mine, theirs in zip(collected.kept[name].tensors(), moments.tensors(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_weights_that_rest_on_disk_can_be_read(folder: Path):
    whole, spread = load_model(folder / "b"), load_model(folder / "b", device_map=PARTS)
    stored = dict(values_of(spread.model))
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(stored[name], parameter)
    assert signature(whole.model) == signature(spread.model)


def test_the_dtype_is_passed_through(folder: Path):
    spread = load_model(folder / "b", device_map=PARTS, dtype="bfloat16")
    assert {parameter.dtype for parameter in spread.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("method", ["theseus", "carry"])
def test_transport_searches_strengths_of_models_that_rest_on_disk(folder: Path, method: str):
    import transship

    given: dict[str, Any] = {"data": sentences(), "method": method, "batches": 3, "batch_size": 4}
    places = [str(folder / name) for name in ("a", "tuned", "b")]
    whole = transship.transport(*places, **given)
    spread = transship.transport(*places, **given, device_map=HEADED)
    assert any(parameter.is_meta for parameter in spread.target.model.model.parameters())
    torch.testing.assert_close(torch.tensor(spread.choice.curve), torch.tensor(whole.choice.curve))
    assert len({score for _, score in whole.choice.curve}) > 1  # the strengths did something
    for name, change in whole.moved.dense.items():
        torch.testing.assert_close(spread.moved.dense[name], change)


def test_commands_take_a_map(folder: Path):
    from transship.cli.compare import command

    given = [str(folder / "a"), str(folder / "b"), "--data", str(folder / "texts.txt"), "--json"]
    whole, spread = (
        CliRunner().invoke(command, [*given, *more]) for more in ((), ("--device-map", json.dumps(PARTS)))
    )
    assert spread.exit_code == 0, spread.output
    entries = [json.loads(each.stdout)["stacks"] for each in (whole, spread)]
    assert entries[0] == entries[1]


def test_work_that_exchanges_weights_refuses_parts_on_disk(folder: Path):
    import transship

    places = [str(folder / name) for name in ("a", "tuned", "a")]
    with pytest.raises(OptionError, match="rests on disk"):
        transship.transport(
            *places, data=sentences(), method="gradfix", batches=2, batch_size=4, device_map=HEADED
        )
    with pytest.raises(OptionError, match="rests on disk"):
        transship.Fusion(str(folder / "a"), "average", device_map=PARTS)


@pytest.mark.parametrize(("spread", "said"), [("nonsense", "cannot be opened"), ('{"a": ', "it is no JSON")])
def test_a_map_that_is_none_is_one_sentence(folder: Path, spread: str, said: str):
    with pytest.raises((CheckpointError, OptionError), match=said):
        load_model(folder / "b", device_map=spread)
