"""Updates against the dense arithmetic of a few lines; names, shapes, laziness and memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transship.checkpoints import Update
from transship.checkpoints import open as open_checkpoint
from transship.errors import CheckpointError, NumericalError


def weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = shapes or {"a": (4, 5), "b": (7,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def three(make_folder: Callable[..., Path]):
    return [open_checkpoint(make_folder(f"m{seed}", weights(seed))) for seed in range(3)]


def flat(update: Update) -> np.ndarray:
    return np.concatenate([update.dense(name).reshape(-1) for name in update.names]).astype(np.float64)


def test_between_is_the_difference(three):
    base, tuned, _ = three
    update = Update.between(base, tuned)
    assert update.names == ("a", "b")
    assert update.shape("a") == (4, 5)
    assert update.factors("a") is None
    for name in update.names:
        np.testing.assert_array_equal(update.dense(name), tuned.read(name) - base.read(name))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(-3, 3, width=32), st.floats(-3, 3, width=32))
def test_arithmetic_norms_and_cosines_are_those_of_the_flat_vectors(three, x: float, y: float):
    base, first, two = three
    u, v = Update.between(base, first), Update.between(base, two)
    a, b = flat(u), flat(v)
    np.testing.assert_allclose(flat(x * u + v * y), x * a + y * b, atol=1e-5)
    np.testing.assert_allclose(flat(-(u - v)), b - a, atol=1e-5)
    assert u.norm() == pytest.approx(np.linalg.norm(a), rel=1e-12)
    assert u.dot(v) == pytest.approx(a @ b, rel=1e-9, abs=1e-9)
    assert u.cosine(v) == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-9)
    assert u.cosine(u * 2.5) == pytest.approx(1, abs=1e-12)


def test_nothing_has_no_direction(three):
    base, tuned, _ = three
    update = Update.between(base, tuned)
    assert (update - update).norm() == 0
    assert math.isnan(update.cosine(update * 0))
    with pytest.raises(NumericalError, match="scaled by nan"):
        update * math.nan
    with pytest.raises(TypeError):
        update * "2"
    with pytest.raises(TypeError):
        update + 1


def test_the_summary_says_how_far_each_tensor_moved(make_folder: Callable[..., Path]):
    base = {"a": np.full((3, 4), 2, np.float32), "z": np.zeros(2, np.float32), "same": np.ones(3, np.float32)}
    tuned = {name: array.copy() for name, array in base.items()}
    tuned["a"][0, :3] += [3, 0, -4]
    tuned["z"][1] = 1
    rows = Update.between(
        open_checkpoint(make_folder("base", base)), open_checkpoint(make_folder("tuned", tuned))
    ).summary()
    a, z, same = rows
    assert (a.name, a.shape, a.norm, a.changed, a.largest, a.rank) == ("a", (3, 4), 5.0, 2 / 12, 4.0, None)
    assert a.relative == pytest.approx(5 / math.sqrt(48))
    assert (z.norm, z.relative) == (1.0, math.inf)
    assert (same.norm, same.relative, same.changed) == (0, 0, 0)


def test_mismatches_are_named(make_folder: Callable[..., Path]):
    base = open_checkpoint(make_folder("base", weights(0, a=(2, 3), b=(4,), c=(5,))))
    tuned = open_checkpoint(make_folder("tuned", weights(1, a=(2, 3), b=(6,), d=(5,))))
    with pytest.raises(CheckpointError) as caught:
        Update.between(base, tuned)
    message = str(caught.value)
    for part in ("only the base has 'c'", "'b' ([4] and [6])", "only the fine-tune has 'd'", "base", "tuned"):
        assert part in message
    update = Update.between(base, tuned, unmatched="skip")
    assert update.names == ("a",)
    assert list(update.added) == ["d"]
    np.testing.assert_array_equal(update.added["d"](), tuned.read("d"))


def test_integer_buffers_do_not_change_but_must_agree(make_folder: Callable[..., Path]):
    ids = np.arange(4)
    base = open_checkpoint(make_folder("base", {**weights(0), "ids": ids}))
    assert (
        "ids"
        not in Update.between(base, open_checkpoint(make_folder("t1", {**weights(1), "ids": ids}))).names
    )
    assert Update.between(base, open_checkpoint(make_folder("t2", weights(1)))).names == ("a", "b")
    with pytest.raises(CheckpointError, match="different integers are 'ids'"):
        Update.between(base, open_checkpoint(make_folder("t3", {**weights(1), "ids": ids + 1})))


def test_a_prefix_of_a_headed_model_is_seen_through(tiny: Callable[[str], Path]):
    bare, headed = open_checkpoint(tiny("bert-bare")), open_checkpoint(tiny("bert-classifier"))
    update = Update.between(bare, headed, unmatched="skip")
    assert set(update.names) == set(bare.tensors)
    assert set(update.added) == {"classifier.weight", "classifier.bias"}
    name = "encoder.layer.1.output.dense.weight"
    np.testing.assert_array_equal(update.dense(name), headed.read("bert." + name) - bare.read(name))
    back = Update.between(headed, bare, unmatched="skip")
    np.testing.assert_array_equal(back.dense("bert." + name), -update.dense(name))


def test_tied_and_untied_fine_tunes_of_a_tied_base(make_folder: Callable[..., Path]):
    config = {"architectures": ["XForCausalLM"]}
    table = weights(0, t=(3, 2))["t"]
    names = ("model.embed_tokens.weight", "lm_head.weight")
    tied = open_checkpoint(make_folder("tied", {names[0]: table}, config))
    both = open_checkpoint(make_folder("both", dict.fromkeys(names, table + 1), config))
    parted = open_checkpoint(make_folder("parted", {names[0]: table + 1, names[1]: table + 2}, config))
    np.testing.assert_allclose(Update.between(tied, both).dense(names[0]), 1, atol=1e-6)
    with pytest.raises(
        CheckpointError, match=r"only the fine-tune has 'lm_head\.weight' \(tied in the base\)"
    ):
        Update.between(tied, parted)
    assert Update.between(parted, tied).names == names  # an untied base has room for both


def test_float64_differences_are_taken_before_rounding(make_folder: Callable[..., Path]):
    base = open_checkpoint(make_folder("base", {"w": np.ones(3)}))
    tuned = open_checkpoint(make_folder("tuned", {"w": np.ones(3) + 1e-12}))
    np.testing.assert_allclose(Update.between(base, tuned).dense("w"), 1e-12, rtol=1e-3)


def test_factors_of_a_sum_stand_side_by_side(three):
    base = three[0]
    rng = np.random.default_rng(5)
    pairs = [
        (rng.standard_normal((4, r)).astype(np.float32), rng.standard_normal((r, 5)).astype(np.float32))
        for r in (1, 2)
    ]
    first, two = (Update.from_arrays({"a": pair}, base=base) for pair in pairs)
    total = first * 3 - two
    up, down = total.factors("a")
    assert up.shape == (4, 3)
    assert down.shape == (3, 5)
    np.testing.assert_allclose(
        up @ down, 3 * pairs[0][0] @ pairs[0][1] - pairs[1][0] @ pairs[1][1], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(total.dense("a"), up @ down, rtol=1e-4, atol=1e-5)
    assert total.summary()[0].rank == 3
    assert (total + Update.from_arrays({"a": np.ones((4, 5), np.float32)}, base=base)).factors("a") is None
    read = total.reader("a")
    np.testing.assert_allclose(read(3, 12), (up @ down).reshape(-1)[3:12], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ask", [Update.summary, Update.norm, lambda update: update.dot(update)])
def test_weights_that_are_not_finite_are_named(
    ask: Callable[[Update], object], make_folder: Callable[..., Path]
):
    base, tuned = weights(0), weights(1)
    tuned["b"][3] = math.nan
    update = Update.between(
        open_checkpoint(make_folder("base", base)), open_checkpoint(make_folder("tuned", tuned))
    )
    with pytest.raises(NumericalError, match="the change of 'b' holds a NaN or an infinity"):
        ask(update)


def test_an_adapter_is_no_fine_tune(three, tmp_path: Path, make_file: Callable[..., bytes]):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(make_file(weights(0)))
    with pytest.raises(CheckpointError, match=r"is an adapter.*from_adapter"):
        Update.between(three[0], open_checkpoint(tmp_path))


def test_updates_of_different_shapes_do_not_add(three, make_folder: Callable[..., Path]):
    base = three[0]
    other = open_checkpoint(make_folder("other", weights(0, a=(5, 4))))
    wrong = Update.between(other, other)
    for act in (lambda u: u + wrong, lambda u: u.dot(wrong)):
        with pytest.raises(CheckpointError, match=r"'a' is \[4, 5\] in one and \[5, 4\]"):
            act(Update.between(base, base))
    with pytest.raises(CheckpointError, match="has 3 elements"):
        Update.from_arrays({"a": np.ones(3, np.float32)}, base=base)
    with pytest.raises(CheckpointError, match="no tensor 'nothing'"):
        Update.between(base, base).dense("nothing")


def test_a_real_fine_tune_moved_by_one_percent(models_dir: Path):
    base, tuned = (open_checkpoint(models_dir / name) for name in ("minilm-l6", "minilm-l6-sre"))
    rows = Update.between(base, tuned).summary()
    assert sum(row.changed > 0 for row in rows) == 101
    size = math.sqrt(sum((row.norm / row.relative) ** 2 for row in rows if row.relative > 0))
    assert math.sqrt(sum(row.norm**2 for row in rows)) / size == pytest.approx(0.01, rel=0.3)


MEMORY = """
import json, struct, sys, threading, time
from pathlib import Path
from transship.checkpoints import Update, open as open_checkpoint

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "RssAnon" in line)

peak, done = 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)

def sparse(path, mark):  # 1 GB of bfloat16 zeros that take no disk, and one number
    header, end = {}, 0
    for n in range(8):
        place, end = end, end + 4096 * 15360 * 2
        header[f"layer.{n}.weight"] = {"dtype": "BF16", "shape": [4096, 15360], "data_offsets": [place, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
        file.seek(8 + len(text) + 2 * 1234567)
        file.write(struct.pack("<H", mark))

folder = Path(sys.argv[1])
sparse(folder / "base.safetensors", 0x3F80)   # 1.0
sparse(folder / "tuned.safetensors", 0x4080)  # 4.0
start = anonymous()
thread = threading.Thread(target=watch); thread.start()
base, tuned = (open_checkpoint(folder / f"{name}.safetensors") for name in ("base", "tuned"))
rows = Update.between(base, tuned).summary()
done = True; thread.join()
found = {"norm": rows[0].norm, "relative": rows[0].relative, "rows": len(rows)}
print(json.dumps({"peak": peak, "start": start, **found}))
"""


@pytest.mark.slow
def test_two_checkpoints_of_1_gb_are_summarised_in_little_memory(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["norm"], record["relative"], record["rows"]) == (3.0, 3.0, 8)
    assert record["peak"] < 300_000, "kB of anonymous memory"
    assert record["peak"] - record["start"] < 60_000
