"""Moments: additive, exact to rounding, of fixed size, and wary of what is not finite."""

import inspect
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transship.errors import DataError, NumericalError, OptionError
from transship.geometry import Moments, load_moments, save_moments


def rows(count, width, seed, dtype=torch.float64):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def parts_of(moments):
    names = ("sum_a", "sum_b", "square_a", "square_b", "aa", "bb", "ab")
    return {name: getattr(moments, name) for name in names}


def assert_same(one, two, tolerance=1e-10):
    assert one.count == pytest.approx(two.count, abs=tolerance)
    for name, part in parts_of(one).items():
        torch.testing.assert_close(part, parts_of(two)[name], rtol=tolerance, atol=tolerance)


def test_equals_the_dense_products():
    a, b = rows(50, 4, 0), rows(50, 7, 1)
    result = Moments.of(a, b)
    expected = {"sum_a": a.sum(0), "sum_b": b.sum(0), "square_a": (a * a).sum(0), "square_b": (b * b).sum(0)}
    expected |= {"aa": a.T @ a, "bb": b.T @ b, "ab": a.T @ b}
    assert result.count == 50
    for name, part in expected.items():
        torch.testing.assert_close(getattr(result, name), part)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 60),
    width_a=st.integers(1, 8),
    width_b=st.integers(1, 8),
    data=st.data(),
)
def test_two_halves_sum_to_the_whole(seed, count, width_a, width_b, data):
    cut = data.draw(st.integers(0, count))
    a, b = rows(count, width_a, seed), rows(count, width_b, seed + 1)
    whole = Moments.of(a, b)
    assert_same(Moments.of(a[:cut], b[:cut]) + Moments.of(a[cut:], b[cut:]), whole)
    streamed = Moments.zeros(width_a, width_b).update(a[:cut], b[:cut]).update(a[cut:], b[cut:])
    assert_same(streamed, whole)


def test_many_rows_and_wide_sites_go_through_chunks_and_panels():
    a, b = rows(9001, 30, 0), rows(9001, 600, 1)
    result = Moments.of(a, b)
    torch.testing.assert_close(result.bb, b.T @ b, rtol=1e-10, atol=1e-9)
    assert torch.equal(result.bb, result.bb.T)


def test_float32_rows_keep_six_digits_and_say_so():
    a, b = rows(5000, 20, 0, torch.float32), rows(5000, 300, 1, torch.float32)
    result, exact = Moments.of(a, b), Moments.of(a, b, exact=True)
    assert not result.exact
    assert exact.exact
    assert result.precision > 1e-8 > exact.precision
    assert float((result.bb - exact.bb).norm() / exact.bb.norm()) < 1e-6
    assert not (result + exact).exact


def test_a_small_weight_of_rows_is_not_lost_in_a_long_stream():
    # float32 sums stop growing at 2²⁴: a stream of ones must not
    moments = Moments.zeros(1, 1)
    moments.count, moments.aa[:], moments.sum_a[:] = 2.0**25, 2.0**25, 2.0**25
    ones = torch.ones(3, 1)
    moments.update(ones, ones)
    assert float(moments.aa) == 2.0**25 + 3
    assert float(moments.sum_a) == 2.0**25 + 3


def test_integer_weights_repeat_rows():
    a, b = rows(6, 3, 0), rows(6, 2, 1)
    times = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 0.0], dtype=torch.float64)
    index = torch.repeat_interleave(torch.arange(6), times.long())
    assert_same(Moments.of(a, b, weights=times), Moments.of(a[index], b[index]))


def test_centred_equals_moments_of_centred_rows():
    a, b = rows(30, 3, 0) + 5, rows(30, 4, 1) - 2
    expected = Moments.of(a - a.mean(0), b - b.mean(0))
    expected.sum_a, expected.sum_b = torch.zeros(3).double(), torch.zeros(4).double()
    assert_same(Moments.of(a, b).centred(), expected)


def test_only_the_wanted_parts_are_kept():
    moments = Moments.of(rows(5, 3, 0), rows(5, 4, 1), parts={"ab"})
    assert moments.parts == ("ab",)
    with pytest.raises(OptionError, match="'bb' was not collected"):
        moments.part("bb")
    with pytest.raises(OptionError, match="there is no part 'cc'"):
        inspect.unwrap(Moments.zeros.__func__)(Moments, 1, 1, parts={"cc"})  # without the tests' type check


def test_pairs_share_the_moments_of_a_common_side():
    a, b = rows(9, 3, 0), rows(9, 4, 1)
    shared = Moments.of(a, a, parts={"aa"})
    completed = Moments.of(a, b, parts={"ab", "bb"}).with_sides(aa=shared.aa)
    assert_same(completed, Moments.of(a, b))
    assert completed.aa is shared.aa


def test_swapping_exchanges_the_sides():
    a, b = rows(9, 3, 0), rows(9, 4, 1)
    assert_same(Moments.of(a, b).swapped(), Moments.of(b, a))


def test_interpolation_weighs_two_blocks():
    lower, upper, b = rows(9, 3, 0), rows(9, 3, 1), rows(9, 2, 2)
    pixels = Moments.of(lower, b).interpolate(Moments.of(upper, b), 0.25)
    torch.testing.assert_close(pixels.ab, 0.75 * lower.T @ b + 0.25 * upper.T @ b)
    assert pixels.count == 9


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_rows_are_refused_by_site_and_leave_the_sums_alone(bad):
    moments = Moments.zeros(3, 2, name="encoder.layer.4.attention")
    poisoned = rows(4, 3, 0)
    poisoned[2, 1] = bad
    with pytest.raises(NumericalError, match=r"encoder\.layer\.4\.attention: .*NaN or Inf"):
        moments.update(poisoned, rows(4, 2, 1))
    assert moments.count == 0
    assert not moments.sum_a.any()


def test_overflowing_products_are_found_by_check():
    moments = Moments.of(torch.full((2, 1), 1e30), torch.ones(2, 1))
    with pytest.raises(NumericalError, match="head: "):
        moments.check("head")
    assert Moments.of(rows(2, 1, 0), rows(2, 1, 0)).check().count == 2


def test_rows_that_do_not_pair_up_are_refused():
    moments = Moments.zeros(3, 2)
    with pytest.raises(DataError, match="do not pair up"):
        inspect.unwrap(Moments.update)(
            moments, rows(4, 3, 0), rows(5, 2, 1)
        )  # without the tests' shape check
    with pytest.raises(DataError, match="do not add"):
        moments + Moments.zeros(3, 3)


def test_no_rows_have_no_means():
    with pytest.raises(NumericalError, match="no rows"):
        Moments.zeros(2, 2).centred()


def test_saved_and_loaded_is_the_same(tmp_path):
    moments = Moments.of(rows(9, 3, 0), rows(9, 4, 1), parts={"ab", "bb"}, name="blocks.1")
    moments.save(tmp_path / "moments.safetensors")
    loaded = Moments.load(tmp_path / "moments.safetensors")
    assert (loaded.name, loaded.parts, loaded.exact, loaded.count) == ("blocks.1", ("bb", "ab"), True, 9.0)
    assert torch.equal(loaded.bb, moments.bb)
    assert torch.equal(loaded.ab, moments.ab)
    assert [file.name for file in tmp_path.iterdir()] == ["moments.safetensors"]


def test_shared_parts_are_written_once(tmp_path):
    a = rows(20, 200, 0)
    shared = Moments.of(a, a, parts={"aa"}).aa
    pairs = {
        n: Moments.of(a, rows(20, 2, i), parts={"ab"}).with_sides(aa=shared) for i, n in enumerate("qkv")
    }
    save_moments(tmp_path / "all", pairs)
    assert (tmp_path / "all").stat().st_size < 1.5 * shared.nbytes
    loaded = load_moments(tmp_path / "all")
    assert list(loaded) == ["q", "k", "v"]
    assert_same(
        loaded["k"].with_sides(bb=torch.zeros(2, 2).double()),
        pairs["k"].with_sides(bb=torch.zeros(2, 2).double()),
    )


@pytest.mark.parametrize("keep", [0, 4, 7, 100, -9, -1])
def test_a_truncated_file_is_one_clear_error(tmp_path, keep):
    path = tmp_path / "m.safetensors"
    Moments.of(rows(9, 3, 0), rows(9, 4, 1)).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"m\.safetensors: "):
        Moments.load(path)


def test_foreign_newer_and_missing_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(DataError, match="no such file"):
        Moments.load(tmp_path / "absent")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(DataError, match=r"format 'unknown'"):
        Moments.load(tmp_path / "other")
    about = {"format": "transship.moments", "version": "99", "index": json.dumps({})}
    save_file({"x": torch.zeros(1)}, tmp_path / "newer", metadata=about)
    with pytest.raises(DataError, match="version '99'"):
        Moments.load(tmp_path / "newer")
    about |= {
        "version": "1",
        "index": json.dumps({"a": {"count": 1, "exact": True, "arrays": {"sum_a": "gone"}}}),
    }
    save_file({"x": torch.zeros(1)}, tmp_path / "lying", metadata=about)
    with pytest.raises(DataError, match="not a complete Moments file"):
        load_moments(tmp_path / "lying")


def test_memory_does_not_grow_with_the_number_of_rows(warm):
    script = (
        "import resource, torch\n"
        "from transship.geometry import Moments\n"
        "moments, batch = Moments.zeros(64, 96), torch.randn(2000, 96)\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in range(20): moments.update(batch[:, :64], batch)\n"
        "before, size = peak(), moments.nbytes\n"
        "for _ in range(130): moments.update(batch[:, :64], batch)\n"
        "print(peak() - before, moments.nbytes - size, moments.count)\n"
    )
    done = warm.run("-c", script)
    assert done.returncode == 0, done.stderr
    grown, resized, count = done.stdout.split()
    assert int(grown) < 4096  # kB; the rows themselves would be 100 MB
    assert int(resized) == 0
    assert float(count) == 300_000
