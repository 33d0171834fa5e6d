"""Numbers in files, against torch bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transship.checkpoints.dtypes import CHUNK, find_dtype, narrow, widen
from transship.errors import CheckpointError, OptionError


def patterns(count: int, seed: int) -> np.ndarray:
    """Random bit patterns as float32: every sign, exponent and kind of number."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


def torch_bits(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    width = {2: np.uint16, 1: np.uint8}[torch.empty(0, dtype=dtype).element_size()]
    return torch.from_numpy(values).to(dtype).view(torch.uint8).numpy().view(width)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_narrowing_equals_torch_bit_by_bit(name: str):
    # all upper halves with the lower halves around a tie, then anything
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    near = np.concatenate([(upper | low).view(np.float32) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    values = np.concatenate([near, patterns(300_000, 0)])
    values = values[~np.isnan(values)]
    ours = narrow(values, name).view(np.uint16)
    np.testing.assert_array_equal(ours, torch_bits(values, getattr(torch, name)))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_nan_stays_nan_and_zero_keeps_its_sign(name: str):
    nans = np.array([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(widen(narrow(nans, name), name)).all()
    zeros = widen(narrow(np.array([0.0, -0.0], np.float32), name), name)
    np.testing.assert_array_equal(np.signbit(zeros), [False, True])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_equals_torch_within_its_range(name: str):
    kind = getattr(torch, name)
    every = torch.arange(256, dtype=torch.uint8).view(kind)
    np.testing.assert_array_equal(widen(every.view(torch.uint8).numpy(), name), every.float().numpy())
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32) * 40
    finite = np.sort(every.float().numpy()[np.isfinite(every.float().numpy())]).astype(np.float64)
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    values = np.concatenate([values, ties])
    np.testing.assert_array_equal(narrow(values, name), torch_bits(values, kind))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_widening_equals_torch(name: str):
    kind = getattr(torch, name)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(kind)
    if name in ("bfloat16", "float16"):
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(kind)
    np.testing.assert_array_equal(widen(every.view(torch.uint8).numpy(), name), every.float().numpy())


def exact_bfloat16(value: float) -> float:
    """Round a double to bfloat16 by comparing with its two neighbours, exactly."""
    low = np.array([value], np.float32).view(np.uint32)[0] & 0xFFFF0000
    around = np.array([low - 0x10000, low, low + 0x10000], np.uint32).view(np.float32).astype(np.float64)
    gaps = np.abs(around - value)
    best = np.flatnonzero(gaps == gaps.min())
    even = [k for k in best if (int(low) + 0x10000 * (int(k) - 1)) >> 16 & 1 == 0]
    return float(around[even[0] if len(best) > 1 else best[0]])


@given(
    st.integers(0x0100, 0x7E00), st.sampled_from([0.5, 0.5 + 2**-40, 0.5 - 2**-40, 0.25, 0.75]), st.booleans()
)
def test_float64_is_rounded_once(upper: int, share: float, negative: bool):
    low, high = (
        np.array([u << 16], np.uint32).view(np.float32)[0].astype(np.float64) for u in (upper, upper + 1)
    )
    value = float(low + (high - low) * share) * (-1 if negative else 1)
    assert widen(narrow(np.array([value]), "bfloat16"), "bfloat16")[0] == exact_bfloat16(value)


def test_rounding_twice_would_differ():
    value = np.array([1 + 2**-8 + 2**-40])  # just above a tie of bfloat16 that float32 cannot tell from it
    once, twice = narrow(value, "bfloat16"), narrow(value.astype(np.float32), "bfloat16")
    assert once[0] == twice[0] + 1


def test_chunks_do_not_show():
    values = patterns(2 * CHUNK + 7, 3)
    values = values[~np.isnan(values)]
    parts = np.concatenate([narrow(part, "bfloat16") for part in np.array_split(values, 11)])
    np.testing.assert_array_equal(narrow(values, "bfloat16"), parts)
    np.testing.assert_array_equal(
        widen(parts, "bfloat16"), np.concatenate([widen(p, "bfloat16") for p in np.array_split(parts, 5)])
    )


def test_float32_is_not_copied():
    values = np.arange(10, dtype=np.float32)
    assert np.shares_memory(widen(values, "float32"), values)
    assert np.shares_memory(narrow(values, "float32"), values)


def test_unaligned_bytes_are_read():
    raw = memoryview(b"x" + np.arange(5, dtype=np.float32).tobytes())[1:]
    np.testing.assert_array_equal(widen(raw, "float32"), np.arange(5))


def test_a_dtype_is_found_by_each_of_its_names():
    assert find_dtype("torch.bfloat16").code == "BF16"
    assert find_dtype("bf16").name == "bfloat16"
    with pytest.raises(OptionError, match="no dtype 'int4'"):
        find_dtype("int4")
    with pytest.raises(CheckpointError, match="complex"):
        widen(np.zeros(2, np.complex64), "complex64")
