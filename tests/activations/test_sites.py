from collections.abc import Callable

import pytest
import torch
from torch import nn

from transship.activations import (
    LoadedModel,
    Part,
    Site,
    find_sites,
    read_bias,
    read_weight,
    write_weight,
)
from transship.errors import MatchError

ATTENTION = {"attention.query", "attention.key", "attention.value", "attention.out"}
PRE_NORM = {"norm.attention_in", "norm.mlp_in"}
POST_NORM = {"norm.attention_out", "norm.mlp_out"}
MLP, GATED = {"mlp.in", "mlp.out"}, {"mlp.in", "mlp.gate", "mlp.out"}
BLOCKS = {
    "bert": ATTENTION | MLP | POST_NORM,
    "roberta": ATTENTION | MLP | POST_NORM,
    "mpnet": ATTENTION | MLP | POST_NORM,
    "distilbert": ATTENTION | MLP | POST_NORM,
    "vit": ATTENTION | MLP | PRE_NORM,
    "dinov2": ATTENTION | MLP | PRE_NORM | {"scale.attention", "scale.mlp"},
    "dinov2-swiglu": ATTENTION | GATED | PRE_NORM | {"scale.attention", "scale.mlp"},
    "clip": ATTENTION | MLP | PRE_NORM,
    "gpt2": ATTENTION | MLP | PRE_NORM,
    "llama": ATTENTION | GATED | PRE_NORM,
    "mistral": ATTENTION | GATED | PRE_NORM,
    "qwen2": ATTENTION | GATED | PRE_NORM,
    "qwen3": ATTENTION | GATED | PRE_NORM | {"norm.query", "norm.key"},
    "neox": ATTENTION | MLP | PRE_NORM,
    "bloom": ATTENTION | MLP | PRE_NORM,
    "phi3": ATTENTION | GATED | PRE_NORM,
    "falcon": ATTENTION | MLP | {"norm.attention_in"},
}


@pytest.mark.parametrize("family", BLOCKS)
def test_every_block_of_a_family_has_its_roles(family: str, tiny: Callable[..., LoadedModel]):
    sites = tiny(family).sites
    for stack in {site.stack for site in sites if site.block is not None}:
        for block in range(2):
            roles = {site.role for site in sites if (site.stack, site.block) == (stack, block)}
            assert roles == BLOCKS[family] | {"block"}


@pytest.mark.parametrize("family", [*BLOCKS, "swin", "t5"])
def test_names_are_unique_and_widths_are_those_of_the_weights(family: str, tiny: Callable[..., LoadedModel]):
    model = tiny(family)
    assert len({site.name for site in model.sites}) == len(model.sites)
    parameters = dict(model.model.named_parameters(remove_duplicate=False))
    for site in model.sites:
        if site.kind == "linear":
            assert tuple(read_weight(site, parameters[site.weight]).shape) == (site.out_width, site.in_width)
            if site.bias is not None:
                assert tuple(read_bias(site, parameters[site.bias]).shape) == (site.out_width,)
    named = {site.weight for site in model.sites} | {site.bias for site in model.sites}
    assert set(parameters) <= named, "every parameter belongs to a site"


def test_t5_has_an_encoder_and_a_decoder_with_cross_attention(tiny: Callable[..., LoadedModel]):
    sites = tiny("t5").sites
    roles = {
        stack: {site.role for site in sites if (site.stack, site.block) == (stack, 1)}
        for stack in ("encoder", "decoder")
    }
    assert roles["encoder"] == ATTENTION | GATED | PRE_NORM | {"block"}
    cross = {f"cross_{role}" for role in ATTENTION} | {"norm.cross_attention_in"}
    assert roles["decoder"] == roles["encoder"] | cross


def test_swin_counts_its_blocks_through_the_stages(tiny: Callable[..., LoadedModel]):
    sites = [site for site in tiny("swin").sites if site.role == "attention.query"]
    assert [(site.block, site.in_width) for site in sites] == [(0, 8), (1, 8), (2, 16), (3, 16)]


def test_clip_has_two_towers_with_their_projections(tiny: Callable[..., LoadedModel]):
    names = {site.name for site in tiny("clip").sites}
    assert {
        "text.projection",
        "vision.projection",
        "text.1.mlp.in",
        "vision.1.mlp.in",
        "vision.embedding.class",
    } <= names


def test_tied_weights_name_the_first_holder(tiny: Callable[..., LoadedModel]):
    heads = [site for site in tiny("gpt2").sites if site.role == "head"]
    assert [site.tied_to for site in heads] == ["transformer.wte.weight"]


@pytest.mark.parametrize("family", ["gpt2", "neox", "bloom", "phi3", "falcon"])
def test_a_fused_output_splits_into_what_the_attention_uses(family: str, tiny: Callable[..., LoadedModel]):
    """One token attends to itself: what enters the out projection is the value part, repeated over heads."""
    model = tiny(family)
    site = {site.role: site for site in model.sites if site.block == 0}
    parameters = dict(model.model.named_parameters(remove_duplicate=False))
    value, out = site["attention.value"], site["attention.out"]
    caught: dict[str, torch.Tensor] = {}
    modules = dict(model.model.named_modules())
    modules[value.path].register_forward_hook(lambda module, given, made: caught.update(entered=given[0]))
    modules[out.path].register_forward_pre_hook(lambda module, given: caught.update(mixed=given[0]))
    with torch.no_grad():
        model.run(model.preprocess([[7]]))
    projected = caught["entered"][0] @ read_weight(value, parameters[value.weight]).T
    if value.bias is not None:
        projected = projected + read_bias(value, parameters[value.bias])
    heads = caught["mixed"].numel() // projected.numel()  # grouped values are repeated for the query heads
    width = 8
    expected = projected.reshape(-1, 1, width).expand(-1, heads, width).reshape(1, -1)
    torch.testing.assert_close(caught["mixed"][0], expected)


def test_writing_one_part_leaves_the_others_alone():
    site = Site("a", "attention.key", 0, "text", "linear", 3, 4, "a.weight", part=Part(2, 6, 2, 4))
    weight = torch.arange(36.0).reshape(12, 3)
    before = weight.clone()
    write_weight(site, weight, torch.zeros(4, 3))
    changed = (weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [2, 3, 8, 9]
    with pytest.raises(MatchError, match="does not fit"):
        write_weight(site, weight, torch.zeros(3, 3))


def test_multihead_attention_is_three_sites_of_its_fused_weight():
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    sites = {
        site.role: site
        for site in find_sites(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        if site.block == 1
    }
    assert ATTENTION | MLP | POST_NORM | {"block"} == set(sites)
    assert sites["attention.value"].weight == "layers.1.self_attn.in_proj_weight"
    assert sites["attention.value"].part == Part(1, 48, 32, 48)


def test_any_module_works_by_its_names():
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 5), nn.Linear(5, 4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(3, 4)
            self.cells = nn.ModuleList([Cell(), Cell()])

    sites = find_sites(Net())
    named = {site.name: (site.in_width, site.out_width) for site in sites if site.kind == "linear"}
    assert named == {
        "enter": (3, 4),
        "0.left": (4, 5),
        "0.right": (5, 4),
        "1.left": (4, 5),
        "1.right": (5, 4),
    }


def test_the_stem_and_ends_of_whisper_are_known():
    import transformers

    config = transformers.WhisperConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        vocab_size=40,
        pad_token_id=0,
    )
    whole = transformers.WhisperForConditionalGeneration(config)
    outer = {site.path: site.role for site in find_sites(whole) if site.block is None}
    assert outer["proj_out"] == "head"
    assert outer["model.encoder.layer_norm"] == outer["model.decoder.layer_norm"] == "norm.final"
    alone = {site.path: site.role for site in find_sites(whole.get_encoder()) if site.block is None}
    inside = {path.removeprefix("model.encoder."): role for path, role in outer.items()}
    assert alone == {path: inside[path] for path in alone}, (
        "an encoder alone has the roles that it has inside"
    )
