"""A model as a function of its parameters."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from transship.activations import FunctionalModel, features, load_model

SIDES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"vocab_size": 40, "max_position_embeddings": 24, **SIDES}


def words(inputs: Any) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[int(number) for number in row] for row in inputs])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def images(inputs: Any) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.from_numpy(np.stack(list(inputs)))}


def build(name: str) -> tuple[Any, Any]:
    """Return a loaded model and raw inputs for it."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    sentences = [random.integers(3, 40, size=7) for _ in range(5)]
    pixels = [random.standard_normal((3, 8, 8)).astype(np.float32) for _ in range(5)]
    t5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    result = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**WORDS)),
        "classifier": lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(**WORDS, num_labels=3)
        ),
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **SIDES)),
        "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**t5)),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**WORDS)),
    }[name]()
    reads = images if name == "vit" else words
    return load_model(result, preprocess=reads), pixels if name == "vit" else sentences


@pytest.mark.parametrize("name", ["bert", "vit", "t5", "llama"])
def test_with_its_own_weights_it_gives_the_models_features(name: str):
    loaded, inputs = build(name)
    model = FunctionalModel(loaded)
    with torch.no_grad():
        output = model(model.parameters, loaded.preprocess(inputs)).features
    np.testing.assert_allclose(output.numpy(), features(loaded, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "classifier", "vit", "t5", "llama"])
def test_other_weights_give_what_a_module_with_those_weights_gives(name: str):
    loaded, inputs = build(name)
    model = FunctionalModel(loaded)
    before = {key: tensor.clone() for key, tensor in model.parameters.items()}
    batch = loaded.preprocess(inputs)
    generator = torch.Generator().manual_seed(1)
    other = {key: t + 0.05 * torch.randn(t.shape, generator=generator) for key, t in before.items()}
    with torch.no_grad():
        output = model(other, batch)
        assert all(torch.equal(model.parameters[key], tensor) for key, tensor in before.items())
        for key, tensor in loaded.model.named_parameters():
            tensor.copy_(other[key])
        expected = model({}, batch)
    torch.testing.assert_close(output.features, expected.features)
    if name == "classifier":
        direct = loaded.model(**batch.inputs).logits
        torch.testing.assert_close(expected.outputs, direct)
        linear = loaded.model.classifier
        torch.testing.assert_close(linear(expected.features), direct)


def test_a_tied_tensor_is_one_parameter_and_moves_everywhere():
    loaded, inputs = build("t5")
    model = FunctionalModel(loaded)
    assert "shared.weight" in model.parameters
    assert not {"lm_head.weight", "encoder.embed_tokens.weight"} & set(model.parameters)
    batch = loaded.preprocess(inputs)
    doubled = {"shared.weight": 2 * model.parameters["shared.weight"]}
    with torch.no_grad():
        moved = model(doubled, batch).features
        assert not torch.allclose(moved, model({}, batch).features)


def test_gradients_reach_the_parameters_and_nothing_else():
    loaded, inputs = build("classifier")
    model = FunctionalModel(loaded)
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in model.parameters.items()}
    reading = model(leaves, loaded.preprocess(inputs))
    assert reading.outputs is not None
    slopes = torch.autograd.grad(reading.outputs.square().sum(), list(leaves.values()), allow_unused=True)
    assert sum(slope is not None and bool((slope != 0).any()) for slope in slopes) > len(leaves) * 0.8
    assert all(tensor.grad is None for tensor in loaded.model.parameters())


def test_matrices_are_linear_maps_and_no_embeddings():
    loaded, _ = build("classifier")
    matrices = FunctionalModel(loaded).matrices
    assert (
        matrices["bert.encoder.layer.0.attention.self.query.weight"]
        == "bert.encoder.layer.0.attention.self.query"
    )
    assert not any("embeddings" in name or "LayerNorm" in name for name in matrices)


def test_a_module_of_the_users_own_with_a_feature_function():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    model = FunctionalModel(load_model(module), lambda inner, batch: inner[0](batch))
    batch = torch.randn(6, 4)
    torch.testing.assert_close(model({}, batch).features, module[0](batch))
