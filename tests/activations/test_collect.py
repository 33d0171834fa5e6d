import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transship.activations import LoadedModel, collect, load_model, match_sites
from transship.errors import DataError, MatchError, NumericalError, OptionError
from transship.geometry import procrustes

Tiny = Callable[..., LoadedModel]
TEXT_FAMILIES = (
    "bert",
    "roberta",
    "mpnet",
    "distilbert",
    "t5",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "neox",
    "bloom",
    "phi3",
    "falcon",
)


def seen(model: LoadedModel, inputs: list[Any], path: str, side: str) -> list[Tensor]:
    """By hand: what one module saw, input by input and without padding: a list of [tokens, width]."""
    module, caught = model.model.get_submodule(path), []
    if side == "input":
        handle = module.register_forward_pre_hook(lambda _, given: caught.append(given[0][0]))
    else:
        handle = module.register_forward_hook(
            lambda _, given, made: caught.append((made[0] if isinstance(made, tuple) else made)[0])
        )
    with torch.no_grad():
        for item in inputs:
            model.run(model.preprocess([item]))
    handle.remove()
    return caught


@pytest.mark.parametrize(
    ("pair", "side", "source", "target"),
    [
        (
            "text.1.attention.query",
            "input",
            "encoder.layer.1.attention.self.query",
            "encoder.layer.1.attention.attn.q",
        ),
        (
            "text.0.attention.value",
            "output",
            "encoder.layer.0.attention.self.value",
            "encoder.layer.0.attention.attn.v",
        ),
        ("text.1.mlp.out", "input", "encoder.layer.1.output.dense", "encoder.layer.1.output.dense"),
        (
            "text.1.norm.mlp_out",
            "output",
            "encoder.layer.1.output.LayerNorm",
            "encoder.layer.1.output.LayerNorm",
        ),
        ("text.0.block", "output", "encoder.layer.0", "encoder.layer.0"),
    ],
)
def test_moments_equal_a_dense_reference(
    pair: str, side: Any, source: str, target: str, tiny: Tiny, sentences: list[list[int]]
):
    a, b = tiny("bert", 0, torch.float64), tiny("mpnet", 1, torch.float64)
    collected = collect(a, b, None, sentences, tokens_per_input=None, parts=("ab", "aa", "bb"), batch_size=5)
    moments = collected.of(pair, side)
    rows_a, rows_b = (
        torch.cat(seen(model, sentences, path, side)) for model, path in ((a, source), (b, target))
    )
    assert moments.count == len(rows_a) == sum(map(len, sentences))
    expected = {
        "ab": rows_a.T @ rows_b,
        "aa": rows_a.T @ rows_a,
        "bb": rows_b.T @ rows_b,
        "sum_a": rows_a.sum(0),
    }
    for part, value in expected.items():
        torch.testing.assert_close(getattr(moments, part), value, rtol=1e-10, atol=1e-10)


def test_fused_outputs_are_split_and_causal_models_lose_their_first_token(
    tiny: Tiny, sentences: list[list[int]]
):
    a, b = tiny("gpt2", 0, torch.float64), tiny("phi3", 1, torch.float64)
    collected = collect(a, b, None, sentences, tokens_per_input=None)
    rows_a = torch.cat(
        [rows[1:, 16:32] for rows in seen(a, sentences, "transformer.h.1.attn.c_attn", "output")]
    )
    rows_b = torch.cat(
        [rows[1:, 16:24] for rows in seen(b, sentences, "layers.1.self_attn.qkv_proj", "output")]
    )
    moments = collected.output("text.1.attention.key")
    torch.testing.assert_close(moments.ab, rows_a.T @ rows_b, rtol=1e-10, atol=1e-10)
    kept = collect(a, b, None, sentences, tokens_per_input=None, skip_first=False).output(
        "text.1.attention.key"
    )
    assert kept.count == moments.count + len(sentences)


def test_sites_that_share_a_tensor_share_its_moments(tiny: Tiny, sentences: list[list[int]]):
    collected = collect(tiny("llama"), tiny("llama", 1), None, sentences)
    groups = [set(keys) for keys in collected.shared().values()]
    reads = [
        ("text.1.attention.query", "input"),
        ("text.1.attention.key", "input"),
        ("text.1.attention.value", "input"),
    ]
    assert {*reads, ("text.1.norm.attention_in", "output")} in groups
    assert {
        ("text.1.mlp.gate", "input"),
        ("text.1.mlp.in", "input"),
        ("text.1.norm.mlp_in", "output"),
    } in groups
    assert {("text.0.block", "output"), ("text.1.block", "input")} in groups
    # per block: 3 outputs of q, k, v, o-in, o-out, gate-out, up-out, down-in, down-out and two norm outputs
    distinct = {entry for (name, _), entry in collected.entries.items() if name.startswith("text.1.")}
    assert len(distinct) == 11 + 2  # and the residual stream before and after


def test_moments_of_two_halves_sum_to_the_whole(tiny: Tiny, sentences: list[list[int]], assert_same: Any):
    a, b = tiny("bert", 0, torch.float64), tiny("distilbert", 1, torch.float64)
    whole = collect(a, b, None, sentences, tokens_per_input=2)
    halves = [
        collect(a, b, None, sentences[start : start + 6], tokens_per_input=2, first_number=start)
        for start in (0, 6)
    ]
    assert_same(halves[0] + halves[1], whole, 1e-10)


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("families", [("bert", "t5"), ("t5", "t5"), ("gpt2", "llama")])
def test_moments_do_not_depend_on_what_an_input_is_padded_with(
    batch_size: int, families: tuple[str, str], tiny: Tiny, sentences: list[list[int]], assert_same: Any
):
    a, b = tiny(families[0], 0, torch.float64), tiny(families[1], 1, torch.float64)
    whole = collect(a, b, None, sentences, tokens_per_input=3, batch_size=12)
    assert_same(collect(a, b, None, sentences, tokens_per_input=3, batch_size=batch_size), whole, 1e-10)


def test_the_cap_takes_the_same_tokens_at_every_site(tiny: Tiny, sentences: list[list[int]]):
    model = tiny("bert", 0, torch.float64)
    collected = collect(model, model, None, sentences, tokens_per_input=2, seed=3)
    assert {moments.count for moments in collected.kept.values()} == {2.0 * len(sentences)}
    # the residual stream leaves block 0 and enters block 1: same rows, same sums
    # what enters block 0 is what leaves the embedding's norm, and what block 1 reads is what block 0 leaves
    assert collected.entries["text.0.block", "output"] == collected.entries["text.1.attention.key", "input"]
    assert collected.entries["text.norm.embedding", "output"] == collected.entries["text.0.block", "input"]
    other = collect(model, model, None, sentences, tokens_per_input=2, seed=4)
    assert not torch.equal(other.output("text.0.block").sum_a, collected.output("text.0.block").sum_a)


class Rotor(nn.Module):
    """A residual network that commutes with rotations of its hidden spaces: RMS norms have no gain."""

    class Cell(nn.Module):
        def __init__(self, width: int, inner: int) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(width, inner), nn.Linear(inner, width)

        def forward(self, hidden: Tensor) -> Tensor:
            unit = nn.functional.rms_norm(hidden, hidden.shape[-1:])
            inner = self.left(unit)
            return hidden + self.right(inner * inner.norm(dim=-1, keepdim=True).sigmoid())

    def __init__(self, width: int = 12, inner: int = 12, depth: int = 3) -> None:
        super().__init__()  # every space is filled by what enters it, so every map is determined
        self.enter = nn.Linear(16, width)
        self.cells = nn.ModuleList([self.Cell(width, inner) for _ in range(depth)])

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for cell in self.cells:
            hidden = cell(hidden)
        return hidden


def rotation(width: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(seed)))[0]


def test_a_rotated_twin_is_matched_by_its_rotations():
    torch.manual_seed(0)
    original, twin = Rotor(), Rotor()
    stream, inner = rotation(12, 1), [rotation(12, 2 + number) for number in range(3)]
    with torch.no_grad():  # h_twin = h Q, so W_out becomes QᵀW and W_in becomes W Q
        twin.enter.weight.copy_(stream.T @ original.enter.weight)
        twin.enter.bias.copy_(original.enter.bias @ stream)
        for here, there, turn in zip(twin.cells, original.cells, inner, strict=True):
            here.left.weight.copy_(turn.T @ there.left.weight @ stream)
            here.left.bias.copy_(there.left.bias @ turn)
            here.right.weight.copy_(stream.T @ there.right.weight @ turn)
            here.right.bias.copy_(there.right.bias @ stream)
    data = list(torch.randn(400, 16, generator=torch.Generator().manual_seed(9)).numpy())
    collected = collect(original, twin, None, data)
    for number, turn in enumerate(inner):
        maps = {
            (role, side): procrustes(collected.of(f"{number}.{role}", side)).matrix.float()
            for role in ("left", "right")
            for side in ("input", "output")
        }
        torch.testing.assert_close(maps["left", "input"], stream, rtol=0, atol=1e-4)
        torch.testing.assert_close(maps["right", "output"], stream, rtol=0, atol=1e-4)
        torch.testing.assert_close(maps["left", "output"], turn, rtol=0, atol=1e-4)
        torch.testing.assert_close(maps["right", "input"], turn, rtol=0, atol=1e-4)


def test_interpolated_depth_mixes_rows_or_moments_to_the_same_cross_moment(
    tiny: Tiny, sentences: list[list[int]]
):
    a = tiny("bert", 0, torch.float64)
    import transformers as hf

    deep = hf.BertModel(
        hf.BertConfig(
            vocab_size=50, hidden_size=12, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20
        ),
        add_pooling_layer=False,
    ).double()
    b = load_model(deep, preprocess=a.custom)
    mixed, kept = (
        collect(a, b, None, sentences, tokens_per_input=None, blend=blend) for blend in (True, False)
    )
    for name, side in (
        ("text.1.mlp.out", "output"),
        ("text.2.attention.key", "input"),
        ("text.3.mlp.in", "output"),
    ):
        result, two = mixed.of(name, side), kept.of(name, side)
        torch.testing.assert_close(result.ab, two.ab, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(result.sum_a, two.sum_a, rtol=1e-10, atol=1e-10)
    entry = kept.entries["text.1.mlp.out", "output"]
    assert [weight for _, weight in entry.moments] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    unit = kept.of("text.1.mlp.out", "output", normalise=True)
    parts = [kept.kept[name].ab for name, _ in entry.moments]
    expected = sum(
        weight * part / part.norm() for (_, weight), part in zip(entry.moments, parts, strict=True)
    )
    torch.testing.assert_close(unit.ab, expected)


def test_a_shallower_model_is_collected_though_its_mixed_blocks_share_tensors(
    sentences: list[list[int]], tiny: Tiny
):
    import transformers as hf

    def bert(layers: int) -> LoadedModel:
        torch.manual_seed(layers)
        sizes = {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 20}
        config = hf.BertConfig(vocab_size=50, num_hidden_layers=layers, **sizes)
        return load_model(
            hf.BertModel(config, add_pooling_layer=False).double(), preprocess=tiny("bert").custom
        )

    deep, shallow = bert(6), bert(3)
    mixed, kept = (
        collect(deep, shallow, None, sentences, tokens_per_input=None, blend=blend) for blend in (True, False)
    )
    for name in ("text.1.attention.query", "text.1.mlp.out", "text.2.mlp.in"):
        for side in ("input", "output"):
            result, two = mixed.of(name, side), kept.of(name, side)
            torch.testing.assert_close(result.ab, two.ab, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("window", [2, 3])
def test_windowed_attention_is_put_back_in_order(window: int, pictures: Callable[[int], list[Any]]):
    """What the query map of a shifted, padded window attention reads is the norm's output, token by token."""
    import transformers as hf

    def swin(seed: int) -> LoadedModel:
        torch.manual_seed(seed)
        config = hf.SwinConfig(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=window,
            mlp_ratio=2,
        )
        return load_model(hf.SwinModel(config, add_pooling_layer=False).double())

    collected = collect(swin(0), swin(1), None, pictures(32), tokens_per_input=7)
    for block in range(4):
        reads, norm = (
            collected.input(f"vision.{block}.attention.query"),
            collected.output(f"vision.{block}.norm.attention_in"),
        )
        assert reads.count == norm.count == 4 * 7
        torch.testing.assert_close(reads.ab, norm.ab, rtol=1e-10, atol=1e-10)


def test_patch_grids_of_two_sizes_are_resampled(pictures: Callable[[int], list[Any]]):
    import transformers as hf
    from torch.nn import functional

    def vit(patch: int, width: int) -> LoadedModel:
        torch.manual_seed(patch)
        config = hf.ViTConfig(
            image_size=24,
            patch_size=patch,
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=20,
        )
        return load_model(hf.ViTModel(config, add_pooling_layer=False).double())

    a, b = vit(6, 12), vit(4, 16)
    collected = collect(a, b, None, pictures(24), tokens_per_input=None)
    rows_a, rows_b = [], []
    for there, here in zip(
        *(seen(model, pictures(24), "layers.0.mlp.fc1", "output") for model in (a, b)), strict=True
    ):
        grid = there[1:].T.reshape(1, -1, 4, 4)
        moved = functional.interpolate(grid, (6, 6), mode="bilinear", align_corners=False)[0].flatten(1).T
        rows_a += [there[:1], moved]
        rows_b += [here]
    expected = torch.cat(rows_a).T @ torch.cat(rows_b)
    torch.testing.assert_close(collected.output("vision.0.mlp.in").ab, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_text_family_is_collected_with_its_like(family: str, tiny: Tiny, sentences: list[list[int]]):
    collected = collect(tiny(family), tiny(family, 1), None, sentences[:4])
    linear = {
        pair.name
        for pair in collected.matching.pairs
        if pair.target.kind == "linear" and pair.target.block is not None
    }
    assert linear
    assert all(collected.has(name, side) for name in linear for side in ("input", "output"))


@pytest.mark.parametrize(
    ("family", "size"), [("vit", 16), ("dinov2", 16), ("dinov2-swiglu", 16), ("swin", 32)]
)
def test_every_vision_family_is_collected_with_its_like(
    family: str, size: int, tiny: Tiny, pictures: Callable[[int], list[Any]]
):
    collected = collect(tiny(family), tiny(family, 1), None, pictures(size))
    linear = {
        pair.name
        for pair in collected.matching.pairs
        if pair.target.kind == "linear" and pair.target.block is not None
    }
    assert all(collected.has(name, side) for name in linear for side in ("input", "output"))


def test_cross_attention_reads_the_encoders_tokens(tiny: Tiny, sentences: list[list[int]]):
    a, b = tiny("t5", 0, torch.float64), tiny("t5", 1, torch.float64)
    collected = collect(a, b, None, sentences, tokens_per_input=None, skip_first=False)
    final, keys = collected.output("encoder.norm.final"), collected.input("decoder.1.cross_attention.key")
    assert keys.count == sum(map(len, sentences))
    torch.testing.assert_close(keys.ab, final.ab, rtol=1e-10, atol=1e-10)


def test_a_two_tower_model_runs_the_towers_that_have_inputs(tiny: Tiny, pictures: Callable[[int], list[Any]]):
    def words(inputs: list[Any]) -> dict[str, Tensor]:
        return {
            "input_ids": torch.tensor(inputs),
            "attention_mask": torch.ones(len(inputs), 4, dtype=torch.long),
        }

    a, b = tiny("clip"), tiny("clip", 1)
    for model in (a, b):
        model.custom = words
    texts = collect(a, b, None, [[3, 4, 5, 2], [6, 7, 8, 2]])
    assert texts.has("text.0.mlp.in", "input")
    assert not texts.has("vision.0.mlp.in", "input")
    with pytest.raises(MatchError, match="does not run on these inputs"):
        texts.input("vision.0.mlp.in")
    for model in (a, b):
        model.custom = None
    images = collect(a, b, None, pictures(16))
    assert images.has("vision.1.attention.out", "output")
    assert not images.has("text.0.mlp.in", "input")


def plain_encoder(seed: int, width: int, first: bool = True) -> nn.TransformerEncoder:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, 2, 20, batch_first=first, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()


@pytest.mark.parametrize("first", [True, False])
def test_multihead_attention_is_seen_from_inside(first: bool):
    """Against its own weights: q = x W_q + b; what enters out_proj gives the module's output."""
    data = torch.randn(6, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b = plain_encoder(0, 8, first), plain_encoder(1, 8, first)

    def stack(inputs: Any) -> Tensor:
        entries = torch.stack([torch.as_tensor(row) for row in inputs])
        return entries if first else entries.transpose(0, 1)

    models = [load_model(model, preprocess=stack) for model in (a, b)]
    collected = collect(*models, None, list(data), tokens_per_input=None)
    entered = collected.input("0.attention.query")
    torch.testing.assert_close(entered.ab, data.flatten(0, 1).T @ data.flatten(0, 1))
    weights = [model.layers[0].self_attn for model in (a, b)]
    entries = [
        data.flatten(0, 1) @ weight.in_proj_weight[8:16].T + weight.in_proj_bias[8:16] for weight in weights
    ]
    torch.testing.assert_close(collected.output("0.attention.key").ab, entries[0].T @ entries[1])
    with torch.no_grad():
        given = data if first else data.transpose(0, 1)
        outputs = [weight(given, given, given, need_weights=False)[0] for weight in weights]
        outputs = [output if first else output.transpose(0, 1) for output in outputs]
    expected = outputs[0].flatten(0, 1).T @ outputs[1].flatten(0, 1)
    torch.testing.assert_close(collected.output("0.attention.out").ab, expected)
    assert collected.has("1.attention.out", "input")


def test_writing_in_place_does_not_change_what_was_seen():
    def net(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)).double()

    a, b = net(0), net(1)
    data = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    models = [load_model(each, preprocess=lambda inputs: torch.stack(list(inputs))) for each in (a, b)]
    collected = collect(*models, None, list(data))
    expected = a[0](data).T @ b[0](data)
    torch.testing.assert_close(collected.output("0").ab, expected.detach())
    assert float(collected.output("0").sum_a.min()) < float(collected.input("2").sum_a.min())


def test_broken_weights_are_reported_by_the_site(tiny: Tiny, sentences: list[list[int]]):
    a, b = tiny("bert"), tiny("bert", 1)
    with torch.no_grad():
        b.model.encoder.layer[1].output.dense.bias[3] = float("nan")
    with pytest.raises(NumericalError, match=r"text\.1\.mlp\.out\.output"):
        collect(a, b, None, sentences)


def test_memory_does_not_grow_with_the_number_of_inputs(tiny: Tiny):
    a, b = tiny("bert"), tiny("distilbert", 1)
    generator = np.random.default_rng(0)

    def stream(count: int) -> Iterator[list[int]]:
        for _ in range(count):
            yield generator.integers(3, 50, 8).tolist()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    marks: dict[int, int] = {}
    collect(
        a,
        b,
        None,
        stream(9000),
        batch_size=64,
        progress=lambda done: marks.setdefault(done // 1024, resident()),
    )
    growth = max(marks.values()) - marks[2]
    assert growth < 8 * 2**20, f"grew by {growth / 2**20:.1f} MB after the first two thousand inputs"


def test_mistakes_are_one_sentence(tiny: Tiny, sentences: list[list[int]]):
    model = tiny("bert")
    with pytest.raises(DataError, match="there are no inputs"):
        collect(model, model, None, [])
    with pytest.raises(OptionError, match="no part 'cc'"):
        collect(model, model, None, sentences, parts=("cc",))
    with pytest.raises(MatchError, match="nothing can be collected"):
        collect(model, model, match_sites(model, model), sentences, kinds=("conv",))
    with pytest.raises(DataError, match="cannot run these inputs"):
        collect(model, model, None, [[3, 49, 9999]])
