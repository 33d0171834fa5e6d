import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transship.activations import LoadedModel, features, iter_features, load_model
from transship.activations.readout import sentence_encoder_settings
from transship.errors import DataError, OptionError

Tiny = Callable[..., LoadedModel]


def test_mean_pooling_counts_real_tokens_only_and_keeps_the_order(tiny: Tiny, sentences: list[list[int]]):
    model = tiny("bert")
    with torch.no_grad():
        rows = [
            model.model(**model.preprocess([ids]).inputs).last_hidden_state[0].mean(0) for ids in sentences
        ]
    np.testing.assert_allclose(features(model, sentences, batch_size=5), torch.stack(rows).numpy(), atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "last", "max"])
def test_other_poolings_are_what_they_say(pooling: Any, tiny: Tiny, sentences: list[list[int]]):
    model = tiny("bert")
    pick = {
        "cls": lambda states: states[0],
        "last": lambda states: states[-1],
        "max": lambda states: states.amax(0),
    }
    with torch.no_grad():
        rows = [
            pick[pooling](model.model(**model.preprocess([ids]).inputs).last_hidden_state[0])
            for ids in sentences
        ]
    np.testing.assert_allclose(
        features(model, sentences, pooling=pooling), torch.stack(rows).numpy(), atol=1e-6
    )


def test_models_choose_their_own_summary(
    tiny: Tiny, sentences: list[list[int]], pictures: Callable[[int], list[Any]]
):
    def same(model: LoadedModel, inputs: list[Any], pooling: Any) -> bool:
        return np.array_equal(features(model, inputs), features(model, inputs, pooling=pooling))

    assert same(tiny("llama"), sentences, "last")
    assert same(tiny("vit"), pictures(16), "cls")
    assert same(tiny("swin"), pictures(32), "mean")
    assert same(tiny("roberta"), sentences, "mean")  # with a head: the encoder below it
    assert features(tiny("roberta"), sentences).shape == (12, 16)
    assert features(tiny("t5"), sentences).shape == (12, 16)


def test_a_two_tower_model_gives_projected_features(tiny: Tiny, pictures: Callable[[int], list[Any]]):
    model = tiny("clip")
    model.custom = None
    output = features(model, pictures(16))
    with torch.no_grad():
        seen = model.model.vision_model(pixel_values=torch.from_numpy(np.stack(pictures(16)))).pooler_output
        expected = model.model.visual_projection(seen)
    np.testing.assert_allclose(output, expected.numpy(), atol=1e-6)


def test_any_module_gives_its_output(tiny: Tiny):
    layer = torch.nn.Linear(3, 2)
    data = [np.ones(3, dtype=np.float32), np.zeros(3, dtype=np.float32)]
    np.testing.assert_allclose(features(layer, data)[1], layer.bias.detach().numpy())


def test_the_sentence_encoders_files_decide(minilm: Path, tmp_path: Path, models_dir: Path):
    assert sentence_encoder_settings(models_dir / "minilm-l6") == ("mean", True)
    assert sentence_encoder_settings(models_dir / "minilm-l3") == ("mean", False)
    assert sentence_encoder_settings(models_dir / "bge-small") == ("cls", True)
    assert sentence_encoder_settings(tmp_path) == (None, False)
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": "x.Pooling"}]))
    (tmp_path / "config.json").write_text(
        json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    )
    with pytest.raises(OptionError, match="several poolings"):
        sentence_encoder_settings(tmp_path)


def test_real_sentences_are_near_what_they_mean(minilm: Path):
    texts = ["a dog barks", "the hound is barking", "stock prices fell"]
    output = features(load_model(minilm), texts, pooling="mean", normalise=True)
    np.testing.assert_allclose(np.linalg.norm(output, axis=1), 1.0, rtol=1e-6)
    near, far = output[0] @ output[1], output[0] @ output[2]
    assert near > 0.5 > far + 0.2


def test_features_stream_and_refuse_what_they_cannot_do(tiny: Tiny, sentences: list[list[int]]):
    model = tiny("bert")
    (window,) = iter_features(model, iter(sentences))
    assert window.shape == (12, 16)
    assert window.dtype == np.float32
    with pytest.raises(DataError, match="no inputs"):
        features(model, [])
    with pytest.raises(OptionError, match="no pooling 'sum'"):
        features(model, sentences, pooling="sum")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="one vector per token"):
        features(model, sentences, pooling="none")
