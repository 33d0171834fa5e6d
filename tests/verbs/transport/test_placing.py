"""A carried head goes where `from_pretrained` and `pipeline` find it, in families that have such a class."""

import json

import numpy as np
import pytest
import torch
import transformers

from transship.verbs.transport import transport

WORDS = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(28))]
SHAPE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
MARKS = {"bos_token_id": 2, "eos_token_id": 3}
LAYERS = {"vocab_size": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 40, "pad_token_id": 0}
TEXT = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SHAPE)),
    "bert without a pooler": lambda: transformers.BertModel(
        transformers.BertConfig(**SHAPE), add_pooling_layer=False
    ),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**SHAPE)),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(dim=16, hidden_dim=32, **LAYERS)
    ),
    "modernbert": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(**SHAPE, **MARKS, cls_token_id=2, sep_token_id=3)
    ),
    "deberta": lambda: transformers.DebertaV2Model(transformers.DebertaV2Config(**SHAPE)),
    "mpnet": lambda: transformers.MPNetModel(transformers.MPNetConfig(**SHAPE)),
    "electra": lambda: transformers.ElectraModel(
        transformers.ElectraConfig(**{**SHAPE, "embedding_size": 16})
    ),
    "llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**SHAPE, **MARKS)),
}
NAMES = {0: "anger", 1: "joy", 2: "trust"}


def save(model, place, kit, seed):
    """Write a model with random weights and a tokenizer of the words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokens = Tokenizer(models.WordLevel({word: row for row, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    kit.spread(model, seed).eval().save_pretrained(place)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=32,
    ).save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(0)
    return [
        " ".join(WORDS[4 + word] for word in draw.integers(0, 28, draw.integers(4, 9))) for _ in range(96)
    ]


@pytest.fixture(scope="module")
def fine_tunes(kit, tmp_path_factory):
    """A source, and its fine-tunes that answer per text and per token."""
    folder = tmp_path_factory.mktemp("source")
    base = transformers.BertModel(transformers.BertConfig(**SHAPE))
    places = {"source": save(base, folder / "source", kit, 1)}
    labels = {"id2label": NAMES, "label2id": {name: number for number, name in NAMES.items()}}
    for name, kind in (
        ("classes", transformers.BertForSequenceClassification),
        ("tokens", transformers.BertForTokenClassification),
    ):
        model = kit.spread(kind(transformers.BertConfig(**SHAPE, **labels)), 3)
        weights = {key: value for key, value in base.state_dict().items() if "pooler" not in key}
        model.bert.load_state_dict(weights, strict=False)
        save(kit.nudge(model, size=0.1), folder / name, _Still(kit), 0)
        places[name] = str(folder / name)
    return places


class _Still:
    """Saves weights as they are."""

    def __init__(self, kit):
        self.spread = lambda model, seed: model


def moved(fine_tunes, task, target, texts, out, **options):
    """Carry a fine-tune to a target; every text is one that the head is fitted on."""
    result = transport(
        fine_tunes["source"],
        fine_tunes[task],
        target,
        data=texts,
        method="carry",
        options={"body": "theseus", **options},
        strength=0.5,
        batches=3,
    )
    result.save(out)
    return result


@pytest.mark.parametrize("family", TEXT)
def test_a_carried_text_classifier_answers_through_the_pipeline(family, kit, fine_tunes, texts, tmp_path):
    target = save(TEXT[family](), tmp_path / "target", kit, 5)
    result = moved(fine_tunes, "classes", target, texts, tmp_path / "out", penalty=1e-7)
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert type(model).__name__.endswith("ForSequenceClassification")
    assert not (tmp_path / "out" / "head.safetensors").exists()
    first = any("the first token, and not the mean of all" in note for note in result.notes)
    assert first == (family not in ("modernbert", "llama")), "a class may pool as the target does"
    answers = transformers.pipeline("text-classification", str(tmp_path / "out"), top_k=None)(texts[:8])
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    for text, scores in zip(texts, answers, strict=False):
        with torch.no_grad():
            wanted = result.model()(**tokenizer(text, return_tensors="pt")).logits.softmax(1)[0]
        given = {score["label"]: score["score"] for score in scores}
        assert set(given) == set(NAMES.values())
        torch.testing.assert_close(
            torch.tensor([given[name] for name in NAMES.values()]), wanted, atol=1e-5, rtol=1e-4
        )
    assert unexplained(fine_tunes["classes"], tmp_path / "out", texts, bias=family != "llama") < 0.02


def unexplained(fine_tune, out, texts, *, bias):
    """Return ⟨given, wanted − given⟩ as a share of ‖wanted‖²: zero where given is a least-squares fit."""
    outputs = []
    for place in (fine_tune, out):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(place)
        batch = transformers.AutoTokenizer.from_pretrained(place)(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            outputs.append(model(**batch).logits.double())
    wanted, given = (rows - rows.mean(0) if bias else rows for rows in outputs)
    return float((given * (wanted - given)).sum().abs() / wanted.square().sum())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert", "deberta"])
def test_a_carried_tagger_answers_through_the_pipeline(family, kit, fine_tunes, texts, tmp_path):
    target = save(TEXT[family](), tmp_path / "target", kit, 5)
    result = moved(fine_tunes, "tokens", target, texts, tmp_path / "out")
    answers = transformers.pipeline("token-classification", str(tmp_path / "out"))(texts[0])
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    with torch.no_grad():
        logits = result.model()(**tokenizer(texts[0], return_tensors="pt")).logits[0, 1:-1]
    assert [answer["entity"] for answer in answers] == [NAMES[number] for number in logits.argmax(1).tolist()]


VISION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VISION |= {"image_size": 28, "patch_size": 7, "num_channels": 3}
IMAGES = {
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**VISION)),
    "deit": lambda: transformers.DeiTModel(transformers.DeiTConfig(**VISION)),
    "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**VISION)),
    "beit": lambda: transformers.BeitModel(transformers.BeitConfig(**VISION)),
}


@pytest.mark.parametrize("family", IMAGES)
def test_a_carried_image_classifier_answers_through_the_pipeline(family, kit, tmp_path):
    from PIL import Image

    processor = transformers.ViTImageProcessor(size={"height": 28, "width": 28})
    kit.spread(IMAGES[family](), 5).eval().save_pretrained(tmp_path / "target")
    processor.save_pretrained(tmp_path / "target")
    base = transformers.ViTForImageClassification(
        transformers.ViTConfig(**VISION, id2label=NAMES, label2id={name: n for n, name in NAMES.items()})
    )
    for place, model in (("source", kit.spread(base, 1)), ("tuned", kit.nudge(base, size=0.1))):
        model.eval().save_pretrained(tmp_path / place)
        processor.save_pretrained(tmp_path / place)
    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 255, (28, 28, 3), dtype=np.uint8)) for _ in range(48)]
    places = [str(tmp_path / place) for place in ("source", "tuned", "target")]
    result = transport(*places, data=images, method="carry", strength=0.5, batches=1)
    result.save(tmp_path / "out")
    answers = transformers.pipeline("image-classification", str(tmp_path / "out"))(images[0])
    with torch.no_grad():
        wanted = result.model()(**processor(images[0], return_tensors="pt")).logits[0]
    assert answers[0]["label"] == NAMES[int(wanted.argmax())]
    assert {answer["label"] for answer in answers} == set(NAMES.values())


def test_where_no_class_holds_the_head_the_lines_that_load_it_are_said_and_work(
    kit, fine_tunes, texts, tmp_path
):
    from safetensors.torch import load_file

    config = transformers.CLIPTextConfig(**SHAPE, **MARKS)
    target = save(transformers.CLIPTextModel(config), tmp_path / "target", kit, 5)
    result = moved(fine_tunes, "classes", target, texts, tmp_path / "out")
    text = " ".join(result.notes)
    assert "transformers has no ForSequenceClassification for CLIPTextModel" in text
    for line in ("CLIPTextModel.from_pretrained", "load_file", 'head["weight"].T + head["bias"]'):
        assert line in text
        assert line in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    head = load_file(tmp_path / "out" / "head.safetensors")
    assert head["weight"].shape == (3, 16)
    assert json.loads((tmp_path / "out" / "head.json").read_text(encoding="utf-8"))["labels"] == [
        *NAMES.values()
    ]
