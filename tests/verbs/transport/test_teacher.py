"""Fine-tunes with labels per token, values and vocabularies: strengths, heads and gradients, against dense
references.
"""

import json

import pytest
import torch
from torch import nn

from transship.errors import OptionError
from transship.verbs.transport import transport

WORDS = [first + second for first in "bcdfgk" for second in ("ad", "en", "ip", "og", "un", "ar")]
SPECIAL = ["<pad>", "<unk>", "</s>"]


def sentences(count: int) -> list[str]:
    generator = torch.Generator().manual_seed(4)
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, 11, (1,), generator=generator))
        chosen = torch.randint(len(WORDS), (length,), generator=generator).tolist()
        rows.append(" ".join(WORDS[word] for word in chosen))
    return rows


def bert(kind: str, width: int, kit, *, seed: int, classes: int = 3) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(WORDS) + len(SPECIAL),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=classes,
    )
    torch.manual_seed(seed)
    return kit.spread(getattr(transformers, f"Bert{kind}")(config), seed).eval()


def tuned_from(base: nn.Module, made: nn.Module, kit) -> nn.Module:
    """`made` with the base's body, moved a little, under its own head."""
    made.base_model.load_state_dict(kit.nudge(base.base_model, size=0.2).state_dict(), strict=False)
    return made


def save(model: nn.Module, folder, words: list[str] = WORDS) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    vocabulary = {word: row for row, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=24, **names).save_pretrained(folder)
    return str(folder)


def states_and_outputs(
    body: nn.Module, tagger: nn.Module, folder: str, texts
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token states of one model beside the outputs of another, one text at a time: no padding."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    x, y = [], []
    with torch.no_grad():
        for text in texts:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            x.append(body(input_ids=ids).last_hidden_state[0])
            y.append(tagger(input_ids=ids).logits[0])
    return torch.cat(x).double(), torch.cat(y).double()


def test_a_tagger_is_carried_to_a_bare_encoder_by_the_dense_ridge_over_tokens(kit, tmp_path):
    from safetensors.torch import load_file

    source, target = bert("Model", 32, kit, seed=1), bert("Model", 48, kit, seed=3)
    tuned = tuned_from(source, bert("ForTokenClassification", 32, kit, seed=2), kit)
    folders = [save(each, tmp_path / name) for name, each in (("a", source), ("t", tuned), ("b", target))]
    texts = sentences(90)
    options = {"body": "none", "penalty": 0.1}
    result = transport(*folders, data=texts, method="carry", options=options, batches=1)
    result.save(tmp_path / "out")
    head = load_file(tmp_path / "out" / "model.safetensors")
    from transship.verbs.transport.rows import draw

    x, y = states_and_outputs(target, tuned, folders[0], draw(texts, batches=1).head)
    centred = x - x.mean(0)
    second = centred.T @ centred
    penalty = 0.1 * second.diagonal().mean() * torch.eye(48).double()
    weight = torch.linalg.solve(second + penalty, centred.T @ (y - y.mean(0)))
    intercept = y.mean(0) - x.mean(0) @ weight
    torch.testing.assert_close(head["classifier.weight"].double(), weight.T, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(head["classifier.bias"].double(), intercept, atol=1e-4, rtol=1e-3)
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForTokenClassification"]


@pytest.mark.parametrize("method", ["theseus", "gradient", "auto"])
def test_a_taggers_strength_is_found_by_agreement_token_by_token(kit, tmp_path, method):
    source = bert("ForTokenClassification", 32, kit, seed=1)
    tuned = kit.nudge(source, size=0.3)
    folders = [save(each, tmp_path / name) for name, each in (("a", source), ("t", tuned))]
    result = transport(*folders, folders[0], data=sentences(128), method=method, batches=3)
    assert result.choice.by == "agreement"
    assert dict(result.choice.curve)[0.0] < 0.9, "the fine-tune does something"
    # the source itself as the target: strength 1 of its own update is the fine-tune
    assert result.choice.score > 0.95
    assert result.strength == 1.0
    if method == "auto":
        assert {"carry, body theseus", "untouched target", "random-aligned"} <= {
            candidate.method for candidate in result.candidates
        }


def test_a_taggers_gradients_need_no_head_on_either_base(kit, tmp_path):
    source, target = bert("Model", 32, kit, seed=1), bert("Model", 48, kit, seed=3)
    tuned = tuned_from(source, bert("ForTokenClassification", 32, kit, seed=2), kit)
    folders = [save(each, tmp_path / name) for name, each in (("a", source), ("t", tuned), ("b", target))]
    result = transport(*folders, data=sentences(64), method="gradient", strength=1.0, batches=2)
    maps = [layer for layer in result.moved.layers if layer.rank_out is not None]
    assert len(maps) == 12
    assert all(layer.norm_after > 0 for layer in maps)


def test_a_tagger_does_not_fit_a_head_that_reads_whole_texts(kit, tmp_path):
    source, target = bert("Model", 32, kit, seed=1), bert("ForSequenceClassification", 48, kit, seed=3)
    tuned = tuned_from(source, bert("ForTokenClassification", 32, kit, seed=2), kit)
    folders = [save(each, tmp_path / name) for name, each in (("a", source), ("t", tuned), ("b", target))]

    def refuse(what, done, total):
        raise AssertionError(f"{what}: it was refused too late")

    given = {"data": sentences(64), "batches": 1}
    for method, strength in (("carry", 1.0), ("gradient", 1.0), ("auto", 1.0), ("theseus", "auto")):
        with pytest.raises(OptionError, match="one vector per input"):
            transport(*folders, method=method, strength=strength, progress=refuse, **given)
    # weights alone need no token to be read
    assert transport(*folders, method="theseus", strength=1.0, **given).moved.dense


def test_values_are_carried_to_a_bare_encoder_by_the_dense_ridge_over_what_its_class_reads(kit, tmp_path):
    from transformers import AutoTokenizer

    from transship.verbs.transport.rows import draw

    source, target = bert("Model", 32, kit, seed=1), bert("Model", 48, kit, seed=3)
    tuned = tuned_from(source, bert("ForSequenceClassification", 32, kit, seed=2, classes=1), kit)
    folders = [save(each, tmp_path / name) for name, each in (("a", source), ("t", tuned), ("b", target))]
    texts = sentences(90)
    options = {"body": "none", "penalty": 0.1}
    head = transport(*folders, data=texts, method="carry", options=options, batches=1).head
    assert head.task == "values"
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    x, y = [], []
    with torch.no_grad():
        for text in draw(texts, batches=1).head:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            first = target(input_ids=ids).last_hidden_state[0, 0]
            x.append(first / 64 if target.pooler is None else target.pooler(first[None, None])[0])
            y.append(tuned(input_ids=ids).logits[0])
    features, values = torch.stack(x).double(), torch.stack(y).double()
    centred = features - features.mean(0)
    second = centred.T @ centred
    penalty = 0.1 * second.diagonal().mean() * torch.eye(48).double()
    weight = torch.linalg.solve(second + penalty, centred.T @ (values - values.mean(0)))
    torch.testing.assert_close(head.weight.double(), weight.T, atol=1e-4, rtol=1e-3)
    moved = transport(*folders, data=texts, method="carry", batches=1)
    assert moved.choice.by == "agreement", "its strength is found by rank correlation"
    assert -1.0 <= moved.choice.score <= 1.0


def test_a_classifier_made_from_a_masked_language_model_reads_states_not_words(kit, tmp_path):
    """Both bases come with a vocabulary as their head, which says nothing about the task."""
    source, target = bert("ForMaskedLM", 32, kit, seed=1), bert("ForMaskedLM", 48, kit, seed=3)
    tuned = tuned_from(source, bert("ForSequenceClassification", 32, kit, seed=2), kit)
    folders = [save(each, tmp_path / name) for name, each in (("a", source), ("t", tuned), ("b", target))]
    result = transport(*folders, data=sentences(96), method="carry", batches=2, strength=1.0)
    assert result.head.weight.shape == (3, 48)
    result.save(tmp_path / "out")
    loaded = type(tuned).from_pretrained(tmp_path / "out").state_dict()
    before = target.state_dict()
    assert torch.equal(loaded["classifier.weight"], result.head.weight)
    assert "cls.predictions.transform.dense.weight" in before
    assert not any(name.startswith("cls.") for name in loaded), "the vocabulary is left behind"
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(loaded[query], before[query])


def gpt2(width: int, kit, seed: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(WORDS) + len(SPECIAL),
        n_embd=width,
        n_layer=2,
        n_head=4,
        n_positions=24,
        eos_token_id=2,
    )
    return kit.spread(GPT2LMHeadModel(config), seed).eval()


def test_a_language_models_strength_is_found_by_the_words_it_chooses(kit, tmp_path):
    source = gpt2(32, kit, 1)
    folders = [
        save(each, tmp_path / name) for name, each in (("a", source), ("t", kit.nudge(source, size=0.2)))
    ]
    result = transport(*folders, folders[0], data=sentences(96), method="theseus", batches=2)
    assert result.choice.by == "agreement"
    assert result.strength == 1.0
    assert result.choice.score > 0.95 > dict(result.choice.curve)[0.0]


def test_other_vocabularies_want_a_strength_before_any_work(kit, tmp_path):
    source = gpt2(32, kit, 1)
    folders = [
        save(each, tmp_path / name) for name, each in (("a", source), ("t", kit.nudge(source, size=0.2)))
    ]
    other = save(gpt2(48, kit, 2), tmp_path / "b", [word[::-1] for word in WORDS])

    def refuse(what, done, total):
        raise AssertionError("it was refused too late")

    arguments = {"data": sentences(64), "batches": 1}
    for method in ("theseus", "auto"):
        with pytest.raises(OptionError, match="two vocabularies cannot be compared"):
            transport(*folders, other, method=method, progress=refuse, **arguments)
    result = transport(*folders, other, strength=1.0, **arguments)
    assert result.method == "theseus"
    assert "two vocabularies" in result.notes[0]
