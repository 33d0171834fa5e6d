"""Taggers measured on labels per word: against what a model says at the first token of every word."""

import csv
import json

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from transship.cli.transport import command
from transship.data import wrap
from transship.errors import DataError, OptionError
from transship.verbs.transport import transport
from transship.verbs.transport.rows import draw

STARTS, ENDS = "bcdfgk", ("ad", "en", "ip", "og", "un", "ar")
WHOLE = [start + end for start in STARTS for end in ENDS]
PIECES = [*STARTS, *(f"##{end}" for end in ENDS)]
SPECIAL = ["<pad>", "<unk>", "</s>"]
TAGS = ("O", "B-PER", "I-PER")
LONGEST = 12


def refuse(what, done, total):
    raise AssertionError("it was refused too late")


def sentences(count: int, seed: int, words: int = 9) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(3, words, (1,), generator=generator))
        chosen = torch.randint(len(WHOLE), (length,), generator=generator).tolist()
        rows.append(" ".join(WHOLE[word] for word in chosen))
    return rows


def bert(kind: str, width: int, pieces: list[str], kit, seed: int) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(pieces) + len(SPECIAL),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        id2label=dict(enumerate(TAGS)),
        label2id={tag: number for number, tag in enumerate(TAGS)},
    )
    torch.manual_seed(seed)
    return kit.spread(getattr(transformers, f"Bert{kind}")(config), seed).eval()


def save(model: nn.Module, folder, pieces: list[str], longest: int = LONGEST) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    vocabulary = {word: row for row, word in enumerate([*SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest, **names).save_pretrained(
        folder
    )
    return str(folder)


def at_words(model: nn.Module, folder: str, texts: list[str]) -> tuple[Tensor, Tensor | None]:
    """States and outputs at the first token of every word, one text at a time."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    states, outputs = [], []
    with torch.no_grad():
        for text in texts:
            encoded = tokenizer(text, return_tensors="pt", truncation=True)
            words = encoded.word_ids()
            first = [words.index(word) for word in range(len(text.split())) if word in words]
            output = model(**encoded, output_hidden_states=True)
            states.append(output.hidden_states[-1][0, first])
            outputs.append(output.logits[0, first] if "logits" in output else states[-1])
    return torch.cat(states), torch.cat(outputs)


def tags_of(choices: Tensor, texts: list[str]) -> list[str]:
    """The choices at every word as the labels of the texts."""
    parts = choices.split([len(text.split()) for text in texts])
    return [" ".join(TAGS[choice] for choice in part.tolist()) for part in parts]


@pytest.fixture
def taggers(kit, tmp_path):
    """A tagger, its fine-tune, and texts with the fine-tune's own answers at every word."""
    from types import SimpleNamespace

    source = bert("ForTokenClassification", 32, PIECES, kit, seed=1)
    tuned = kit.nudge(source, size=0.3)
    folders = [save(each, tmp_path / name, PIECES, 32) for name, each in (("a", source), ("t", tuned))]
    train, test = sentences(96, seed=1), sentences(40, seed=2)
    choices = [at_words(tuned, folders[0], texts)[1].argmax(1) for texts in (train, test)]
    return SimpleNamespace(
        source=source,
        tuned=tuned,
        folders=folders,
        data=wrap(train, tags_of(choices[0], train), kind="text", name="train"),
        test=wrap(test, tags_of(choices[1], test), kind="text", name="test"),
        texts=(train, test),
        wanted=choices[1],
    )


def test_a_tagger_is_measured_at_the_first_token_of_every_word(taggers):
    result = transport(
        *taggers.folders,
        taggers.folders[0],
        data=taggers.data,
        test=taggers.test,
        original=taggers.test,
        method="theseus",
        strength=1.0,
        batches=2,
    )
    theirs, untouched, moved = result.measured.rows
    assert theirs.own_head == 1.0, "the labels are its own answers"
    for row, model in ((untouched, taggers.source), (moved, result.model())):
        chosen = at_words(model, taggers.folders[0], taggers.texts[1])[1].argmax(1)
        assert row.own_head == pytest.approx(float((chosen == taggers.wanted).double().mean()), abs=0.011)
    assert untouched.own_head < 0.9
    assert moved.own_head > 0.9, "nearly all of its own update comes back"
    assert untouched.original == untouched.own_head
    assert moved.reused_head > 0.9
    assert 0.4 < theirs.probe <= 1.0
    measured = result.measured
    assert (measured.test_rows, measured.unit) == (len(taggers.wanted), "words")
    known = draw(taggers.data, batches=2).calibration
    assert measured.probe_labels == sum(len(known[row].split()) for row in range(64))
    assert f"accuracy on {len(taggers.wanted)} words of test" in measured.caption()


def test_a_carried_head_is_measured_on_words_that_another_tokenizer_cuts_otherwise(taggers, kit, tmp_path):
    bare = bert("Model", 48, WHOLE, kit, seed=3)
    folder = save(bare, tmp_path / "b", WHOLE, longest=5)
    result = transport(
        *taggers.folders,
        folder,
        data=taggers.texts[0],
        test=taggers.test,
        method="carry",
        options={"body": "none", "penalty": 0.1},
        batches=2,
    )
    _, untouched, moved = result.measured.rows
    states, _ = at_words(bare, folder, taggers.texts[1])
    kept = torch.cat([torch.arange(len(text.split())) < 5 for text in taggers.texts[1]])
    wanted = taggers.wanted[kept]
    chosen = (states @ result.head.weight.T + result.head.bias).argmax(1)
    assert moved.carried_head == pytest.approx(float((chosen == wanted).double().mean()), abs=0.01)
    assert untouched.own_head is None
    assert result.measured.test_rows == len(wanted) < len(kept)
    cut = len(kept) - len(wanted)
    assert f"{cut} words of test were left out: a tokenizer cuts them off" in result.measured.notes
    assert any(
        "the probe was not measured: texts in memory has no labels" in n for n in result.measured.notes
    )


def test_labels_that_are_not_one_per_word_are_refused_before_any_work(taggers, kit, tmp_path):
    texts = taggers.texts[1]
    given = {"data": taggers.data, "method": "theseus", "strength": 1.0, "batches": 1, "progress": refuse}
    for labels, sentence in (
        (["O"] * len(texts), r"has \d+ words and 1 label, and the fine-tune answers for every word"),
        ([" ".join(["O", *["B-LOC"] * (len(text.split()) - 1)]) for text in texts], "no class 'B-LOC'"),
        ([float(len(text)) for text in texts], "its labels are values"),
    ):
        with pytest.raises(DataError, match=sentence):
            transport(*taggers.folders, taggers.folders[0], test=wrap(texts, labels, kind="text"), **given)
    with pytest.raises(OptionError, match="it is for one label per row"):
        transport(*taggers.folders, taggers.folders[0], test=taggers.test, warm_start=5, **given)
    whole = save(bert("ForSequenceClassification", 32, PIECES, kit, seed=5), tmp_path / "whole", PIECES)
    with pytest.raises(OptionError, match="its head reads one vector per input"):
        transport(*taggers.folders, whole, test=taggers.test, **given)


def test_numbers_stand_for_the_classes_of_a_tagger_without_names(taggers):
    from transship.verbs.transport.rows import Words, word_labels

    texts = ["bad ken", "gog"]
    words = Words(texts, (((0, 3), (4, 7)), ((0, 3),)), "text", ((True, True), (True,)))
    labels, names = word_labels(torch.tensor([1, 0]), ("2", "0 3"), words)
    assert labels.tolist() == [0, 3, 2]
    assert names == ("0", "1", "2", "3")


def test_the_command_line_measures_labels_per_word(taggers, tmp_path):
    for name, data in (("data", taggers.data), ("test", taggers.test)):
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            rows.writerows(zip(data.inputs, (data.label_names[label] for label in data.labels), strict=True))
    done = CliRunner().invoke(
        command,
        [
            *taggers.folders,
            taggers.folders[0],
            str(tmp_path / "out"),
            *("--data", str(tmp_path / "data.csv"), "--test", str(tmp_path / "test.csv")),
            *("--method", "theseus", "--strength", "1", "--batches", "2", "--json"),
            *("--prepared", str(tmp_path / "prepared")),
        ],
    )
    assert done.exit_code == 0, (done.output, done.exception)
    record = json.loads(done.stdout)["measured"]
    assert record["unit"] == "words"
    theirs, untouched, moved = (row["own_head"] for row in record["rows"])
    assert theirs == 1.0
    assert moved > untouched + 0.1
