"""Tiny encoders and rows that the tests of `adapt` share; everything here runs in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.data import Dataset
from transship.verbs.adapt.model.backbone import Backbone, open_backbone
from transship.verbs.adapt.model.embedder import shape_for
from transship.verbs.adapt.model.network import AdaptedNetwork, HeadShape, new_embedder
from transship.verbs.adapt.model.source import open_source
from transship.verbs.adapt.train.losses import find_loss
from transship.verbs.adapt.train.problem import LearningProblem, LearningRows

WORDS = [
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "bird",
    "one",
    "two",
    "three",
    "runs",
    "sees",
    "is",
    "a",
    "the",
]


@pytest.fixture(scope="session")
def tiny_bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two small blocks with a word tokenizer, as a model folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tiny_bert_folder: Path) -> Backbone:
    return open_backbone(str(tiny_bert_folder))


@pytest.fixture(scope="session")
def proxy() -> Dataset:
    """Sentences of three classes, told apart by one word."""
    generator = np.random.default_rng(0)
    texts, labels = [], []
    for label, nouns in enumerate((WORDS[0:3], WORDS[3:6], WORDS[6:9])):
        for _ in range(30):
            words = [*generator.choice(nouns, 2), *generator.choice(WORDS[9:], 3)]
            texts.append(" ".join(generator.permutation(words)))
            labels.append(label)
    return Dataset("words", "text", texts, np.array(labels), ("colour", "animal", "number"))


@pytest.fixture(scope="session")
def waves() -> tuple[Any, Any]:
    """Series of length 37 in three classes: two frequencies and noise."""
    return make_waves(60, 0)


@pytest.fixture(scope="session")
def rows() -> tuple[Any, Any]:
    """More of them."""
    return make_waves(90, 0)


def make_waves(count: int, seed: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    time = np.arange(37)
    phase = generator.uniform(0, 6, count)
    rates = np.array([0.4, 1.1, 0.0])[labels]
    series = np.sin(rates[:, None] * time + phase[:, None]) * (labels != 2)[:, None]
    series = series + generator.normal(0, 0.3 + 0.5 * (labels == 2)[:, None], series.shape)
    return series.astype(np.float32), np.array(["slow", "fast", "noise"])[labels]


@pytest.fixture
def quick(tiny_bert: Backbone, proxy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a fit that takes a second."""
    cache = tmp_path_factory.getbasetemp() / "adapt-cache"
    return {
        "backbone": tiny_bert,
        "proxy": proxy,
        "cache": cache,
        "steps": 8,
        "batch_size": 8,
        "tokens": 8,
        "omega": 0.5,
        "device": "cpu",
        "method_options": None,
        "predictor": "linear",
        "freeze_embedder": False,
    }


@pytest.fixture
def problem(tiny_bert: Backbone, proxy: Dataset, waves: Any, quick: dict[str, Any]) -> LearningProblem:
    """The waves before a frozen body, whose embedder and head learn."""
    shape = shape_for(tiny_bert.theta, (37,), 1, tokens=8)
    torch.manual_seed(0)
    head = HeadShape("linear", 32, 3).build()
    network = AdaptedNetwork(new_embedder(shape, tiny_bert.theta, 0), tiny_bert.body(), head)
    network.train_only({"embedder", "head"})
    codes = torch.from_numpy(np.unique(waves[1], return_inverse=True)[1]).long()
    rows = LearningRows(torch.from_numpy(waves[0])[:, None], codes, codes)
    source = open_source(tiny_bert, proxy, items=90, omega=0.5, cache=quick["cache"])
    scale, loss = (torch.zeros(1), torch.ones(1)), find_loss(None, "classification")
    return LearningProblem(network, rows, rows, 3, loss, scale, tiny_bert, source, 0, torch.device("cpu"))
