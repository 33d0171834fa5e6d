"""What is written, transformers loads: the same outputs, in every dtype, in one file or many."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from transship.checkpoints import Input, ModelCard, Update, applied, copied, narrow, write_checkpoint
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError, NumericalError, OptionError, OutputError

FAMILIES = ["llama-tied", "llama-untied", "bert", "t5", "gpt2"]


def load(folder: Path, dtype: object = "auto"):
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    return kind.from_pretrained(folder, dtype=dtype).eval()


def logits(model) -> torch.Tensor:
    tokens = torch.tensor([[5, 9, 33, 2, 60], [1, 1, 8, 7, 0]])
    extra = {"decoder_input_ids": tokens.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=tokens, **extra).logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", ["5GB", "4kB"])
def test_transformers_loads_a_copy_with_equal_logits(
    family: str, shards: str, tiny: Callable[[str], Path], tmp_path: Path
):
    base = open_checkpoint(tiny(family))
    out = write_checkpoint(tmp_path / "out", copied(base), like=base, max_shard_size=shards)
    assert (len(list(out.glob("*.safetensors"))) == 1) == (shards == "5GB")
    assert torch.equal(logits(load(out)), logits(load(tiny(family))))
    again = open_checkpoint(out)
    assert again.fingerprint() == base.fingerprint()
    assert dict(again.tied) == dict(base.tied)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_the_asked_dtype_is_what_torch_would_give(dtype: str, tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("llama-tied"))
    out = write_checkpoint(tmp_path / "out", copied(base), like=base, dtype=dtype)
    kind = getattr(torch, dtype)
    written = open_checkpoint(out)
    for name in base.tensors:
        assert torch.equal(written.tensor(name), base.tensor(name).to(kind))
    config = json.loads((out / "config.json").read_text())
    assert {config[key] for key in ("dtype", "torch_dtype") if key in config} == {dtype}
    model = load(out)
    assert model.dtype == kind
    assert torch.equal(logits(model), logits(load(tiny("llama-tied"), kind)))


def test_bfloat16_goes_round_bit_by_bit(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[torch.isfinite(every)].reshape(-1, 8)
    save_file({"w": every}, tmp_path / "in.safetensors")
    base = open_checkpoint(tmp_path / "in.safetensors")
    for number, plan in enumerate([("w", every.shape, "bfloat16", lambda: base.read("w")),
                                   ("w", every.shape, "bfloat16", lambda: every),
                                   ("w", every.shape, "bfloat16", lambda: base.raw("w"))]):  # fmt: skip
        out = write_checkpoint(tmp_path / str(number), [plan])
        assert torch.equal(
            load_file(out / "model.safetensors")["w"].view(torch.int16), every.view(torch.int16)
        )


def test_shards_keep_to_their_size_and_the_index_is_complete(tmp_path: Path):
    plans = [
        (f"t{n}", (n + 1, 100), "float32", lambda n=n: np.full((n + 1, 100), n, np.float32)) for n in range(9)
    ]
    out = write_checkpoint(tmp_path / "out", plans, max_shard_size=2000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {plan[0] for plan in plans}
    assert index["metadata"]["total_size"] == 45 * 400
    assert sorted(set(index["weight_map"].values())) == sorted(
        path.name for path in out.glob("*.safetensors")
    )
    for path in out.glob("*.safetensors"):
        held = open_checkpoint(path)
        assert held.nbytes <= 2000 or len(held.tensors) == 1
    np.testing.assert_array_equal(open_checkpoint(out).read("t7"), plans[7][3]())


def test_tensors_of_mixed_width_are_aligned(tmp_path: Path):
    plans = [
        ("a", (3,), "uint8", lambda: np.arange(3, dtype=np.uint8)),
        ("b", (2,), "float64", lambda: np.ones(2)),
        ("c", (1,), "float16", lambda: np.ones(1)),
        ("d", (), "int64", lambda: np.array(7)),
        ("e", (0, 2), "float32", lambda: np.zeros((0, 2))),
    ]
    out = open_checkpoint(write_checkpoint(tmp_path / "out", plans))
    for name in ("b", "c", "d"):
        assert not out.read(name).flags.owndata
        assert out.read(name).flags.aligned
    assert out.read("d") == 7
    assert out.read("e").shape == (0, 2)


def test_producers_may_give_parts(tmp_path: Path):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def parts():
        yield values[:300]
        yield torch.from_numpy(values[300:301])
        yield narrow(values[301:], "bfloat16").tobytes()

    out = open_checkpoint(write_checkpoint(tmp_path / "out", [("w", (10, 100), "bfloat16", parts)]))
    assert torch.equal(out.tensor("w").reshape(-1), torch.from_numpy(values).bfloat16())
    for wrong in (lambda: values[:999], lambda: np.append(values, 1), lambda: iter(())):
        with pytest.raises(ValueError, match=r"too (few|many)"):
            write_checkpoint(tmp_path / "wrong", [("w", (10, 100), "bfloat16", wrong)])
    assert sorted(os.listdir(tmp_path)) == ["out"]


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.nan, "float32", "'w' would hold a NaN"),
        (np.inf, "bfloat16", "'w' would hold a NaN or an infinity"),
        (1e6, "float16", r"'w' reaches 1e\+06, too large for float16"),
        (3.4e38, "bfloat16", "too large for bfloat16"),
    ],
)
def test_what_is_not_finite_is_not_written(value: float, dtype: str, message: str, tmp_path: Path):
    values = np.array([1.0, value], np.float32)
    with pytest.raises(NumericalError, match=message):
        write_checkpoint(tmp_path / "out", [("w", (2,), dtype, lambda: values)])
    assert os.listdir(tmp_path) == []


def test_wrong_requests_are_refused_before_anything_is_made(tmp_path: Path):
    plan = ("w", (1,), "float32", lambda: pytest.fail("a producer must not run"))
    with pytest.raises(OptionError, match="no dtype 'float7'"):
        write_checkpoint(tmp_path / "out", [plan], dtype="float7")
    with pytest.raises(CheckpointError, match="twice"):
        write_checkpoint(tmp_path / "out", [plan, plan])
    with pytest.raises(OutputError, match=r"it needs .* and the disk has"):
        write_checkpoint(tmp_path / "out", [plan, ("x", (10**9, 10**9), "float32", plan[3])])
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputError, match="exists"):
        write_checkpoint(tmp_path / "there", [plan])
    assert os.listdir(tmp_path) == ["there"]


def test_base_plus_update_is_the_dense_sum(tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("llama-tied"))
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.up_proj.weight"
    change = rng.standard_normal(base.info(name).shape).astype(np.float32)
    update = Update.from_arrays({name: change}, base=base) * 0.5
    out = open_checkpoint(write_checkpoint(tmp_path / "out", applied(base, update), like=base))
    np.testing.assert_array_equal(out.read(name), base.read(name) + np.float32(0.5) * change)
    for other in base.tensors:
        if other != name:
            assert bytes(out.raw(other)) == bytes(base.raw(other))


def test_writing_takes_chunks_not_tensors_of_memory(make_folder: Callable[..., Path], tmp_path: Path):
    import tracemalloc

    shape = (2048, 2048)  # 16 MB
    base = open_checkpoint(make_folder("m", {f"w{n}": np.ones(shape, np.float32) for n in range(3)}))
    tuned = open_checkpoint(make_folder("t", {f"w{n}": np.full(shape, 3, np.float32) for n in range(3)}))
    tracemalloc.start()
    try:
        plans = applied(base, Update.between(base, tuned) * 0.5)
        out = write_checkpoint(tmp_path / "out", plans, dtype="bfloat16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    assert (open_checkpoint(out).read("w2") == 2).all()


def test_tied_names_are_written_once(tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("llama-tied"))
    plans = [*copied(base), *copied(base, ["lm_head.weight"])]
    plans[-1] = plans[-1]._replace(name="lm_head.weight")
    out = write_checkpoint(tmp_path / "out", plans, like=base)
    assert "lm_head.weight" not in json.dumps(sorted(open_checkpoint(out).tensors))
    assert torch.equal(logits(load(out)), logits(load(tiny("llama-tied"))))


def test_everything_but_the_weights_goes_along(minilm: Path, tmp_path: Path):
    base = open_checkpoint(minilm)
    extra = tmp_path / "extra"
    name = "encoder.layer.0.output.dense.bias"
    out = write_checkpoint(extra, copied(base, [name]), like=base)
    for path in sorted(minilm.rglob("*.json")) + sorted(minilm.rglob("vocab.txt")):
        relative = path.relative_to(minilm)
        if relative.name in ("config.json", "data_config.json", "source.json") and relative.parent == Path():
            continue
        if relative.parts[0] in {
            part["path"] for part in json.loads((minilm / "modules.json").read_text())
        } or (len(relative.parts) == 1 and not relative.name.startswith("train")):
            assert (out / relative).read_bytes() == path.read_bytes(), relative
    assert json.loads((out / "config.json").read_text())["hidden_size"] == 384


def test_foreign_paths_in_modules_json_are_not_followed(make_folder: Callable[..., Path], tmp_path: Path):
    folder = make_folder("m", {"w": np.ones(2, np.float32)}, {"model_type": "x", "auto_map": {}})
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.json").write_text("{}")
    (folder / "modeling.py").write_text("")
    (folder / "modules.json").write_text(
        json.dumps([{"path": "../secret"}, {"path": "/etc"}, {"path": 3}, 4])
    )
    base = open_checkpoint(folder)
    out = write_checkpoint(tmp_path / "out", copied(base), like=base)
    ordered = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    assert ordered == [
        ".written-by-transship",
        "config.json",
        "model.safetensors",
        "modeling.py",
        "modules.json",
    ]


def test_the_card_names_everything_and_nothing_breaks_out(make_folder: Callable[..., Path], tmp_path: Path):
    odd = "evil|name`<script>alert(1)</script>\n# heading\u202e[x](javascript:y)"
    base = open_checkpoint(make_folder("m", {"w": np.ones(2, np.float32)}, {"model_type": "x"}))
    card = ModelCard(
        title=odd,
        verb="merge",
        method="ties",
        parameters={"density": 0.2, odd: odd, "list": [1, np.float32(0.5), float("nan")]},
        inputs=[
            Input.of("base", base),
            Input("tuned", odd, "f" * 64),
            Input("tuned", "owner/name@main", "0" * 64),
        ],
        metrics={"accuracy": 0.91},
        seed=3,
    )
    out = write_checkpoint(tmp_path / "out", copied(base), like=base, card=card)
    page = (out / "README.md").read_text()
    _, head, body = page.split("---\n", 2)
    import yaml

    read = yaml.safe_load(head)
    (entry,) = read.pop("model-index")
    assert entry["name"] == odd, "a name is a text, whatever signs it has"
    assert [metric["value"] for result in entry["results"] for metric in result["metrics"]] == [0.91]
    assert read == {
        "library_name": "transformers",
        "tags": ["transship", "merge"],
        "base_model": ["owner/name"],
        "base_model_relation": "merge",
    }
    for expected in ("ties", base.fingerprint(), "density", "0.2", "seed 3", "numpy", "transship", "0.91"):
        assert expected in body
    assert "<script" not in body
    assert "\n# heading" not in page
    assert "\u202e" not in page
    assert all(
        line.count("|") - line.count("\\|") in (3, 4, 5) for line in body.splitlines() if line.startswith("|")
    )
    record = json.loads((out / "transship.json").read_text())
    assert record["inputs"][1] == {"role": "tuned", "name": odd.partition("/")[2], "sha256": "f" * 64}
    assert record["parameters"]["list"] == [1, 0.5, "nan"]
    assert record["versions"]["numpy"] == np.__version__


def test_the_same_request_gives_the_same_bytes(tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("bert"))
    card = ModelCard(title="t", verb="merge", method="linear", inputs=[Input.of("base", base)])
    for name in ("one", "two"):
        write_checkpoint(
            tmp_path / name, copied(base), like=base, dtype="bfloat16", card=card, max_shard_size="4kB"
        )
    assert sorted(os.listdir(tmp_path / "one")) == sorted(os.listdir(tmp_path / "two"))
    for name in os.listdir(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_folder_can_be_replaced_by_what_is_made_from_it(tiny: Callable[[str], Path], tmp_path: Path):
    base = open_checkpoint(tiny("bert"))
    folder = write_checkpoint(tmp_path / "m", copied(base), like=base)
    mine = open_checkpoint(folder)
    write_checkpoint(
        folder, applied(mine, Update.between(mine, base) * 2), like=mine, dtype="bfloat16", force=True
    )
    assert open_checkpoint(folder).dtype == "bfloat16"
    assert mine.fingerprint() == base.fingerprint()  # the open map still shows the old folder
