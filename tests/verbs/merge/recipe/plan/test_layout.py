import pytest

from transship.errors import CheckpointError
from transship.verbs.merge.recipe.plan.layout import find_layout, is_head


def names(prefix: str, layers: int) -> list[str]:
    return [f"{prefix}.{layer}.{rest}" for layer in range(layers) for rest in ("attn.weight", "mlp.weight")]


def test_one_stack_is_found_by_name_and_config():
    layout = find_layout(["wte.weight", *names("h", 3), "ln_f.weight"], {"n_layer": 3}, "x")
    (stack,) = layout.stacks
    assert (stack.prefix, stack.layers, stack.module, stack.keys) == ("h", 3, "default", ("n_layer",))
    assert layout.position("h.2.mlp.weight").layer == 2
    assert layout.position("wte.weight").before
    assert not layout.position("ln_f.weight").before


def test_numbered_parts_inside_a_layer_and_in_heads_are_no_layers():
    experts = [f"layers.{layer}.experts.{expert}.w.weight" for layer in range(2) for expert in range(4)]
    layout = find_layout(
        [*experts, "classifier.0.weight", "classifier.1.weight"], {"num_hidden_layers": 2}, "x"
    )
    assert [stack.prefix for stack in layout.stacks] == ["layers"]
    assert layout.position("layers.1.experts.3.w.weight").layer == 1


def test_encoder_and_decoder_are_modules_of_their_own():
    config = {"num_layers": 2, "num_decoder_layers": 3}
    layout = find_layout(
        [*names("decoder.block", 3), *names("encoder.block", 2), "shared.weight"], config, "x"
    )
    assert [(stack.module, stack.layers, stack.keys) for stack in layout.stacks] == [
        ("encoder", 2, ("num_layers",)),
        ("decoder", 3, ("num_decoder_layers",)),
    ]
    assert layout.position("decoder.final_layer_norm.weight").module == "decoder"


def test_a_vision_language_model_has_two_stacks_and_nested_keys():
    config = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}
    tensors = [*names("model.language_model.layers", 2), *names("model.visual.blocks", 2)]
    layout = find_layout(tensors, config, "x")
    assert layout.stack("text_decoder").keys == ("text_config", "num_hidden_layers")
    assert layout.stack("vision_tower").keys == ("vision_config", "num_hidden_layers")


def test_without_a_config_the_largest_run_is_the_stack():
    layout = find_layout([*names("layers", 4), "head.0.weight", "head.1.weight"], {}, "x")
    assert [stack.prefix for stack in layout.stacks] == ["layers"]


def test_a_missing_layer_is_one_sentence():
    whole = [*names("layers", 5), *(f"layers.{layer}.norm.weight" for layer in range(5))]
    with pytest.raises(CheckpointError, match="layer 1 of layers is missing"):
        find_layout([name for name in whole if ".1." not in name], {"num_hidden_layers": 5}, "x")


def test_convolutions_numbered_with_gaps_are_no_layers():
    gaps = [f"stem.{number}.{part}" for number in (0, 2, 4, 6) for part in ("weight", "bias")]
    layout = find_layout([*names("layers", 5), *gaps], {"num_hidden_layers": 5}, "x")
    assert [stack.prefix for stack in layout.stacks] == ["layers"]


def test_heads_of_labels_are_told_from_heads_of_words():
    assert all(map(is_head, ("classifier.weight", "score.weight", "model.qa_outputs.bias")))
    assert not any(map(is_head, ("lm_head.weight", "cls.predictions.bias", "head_norm.weight")))
