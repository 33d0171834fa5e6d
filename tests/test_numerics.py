import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transship.errors import OptionError
from transship.numerics import MemoryBudget, chunks, derive_seed, format_bytes, parse_bytes


@given(total=st.integers(0, 1000), size=st.integers(1, 300))
def test_chunks_cover_the_range_once_and_in_order(total: int, size: int):
    covered = [index for part in chunks(total, size) for index in range(part.start, part.stop)]
    assert covered == list(range(total))


def test_a_chunk_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        next(chunks(3, 0))


@given(seed=st.integers(0, 2**40), key=st.text(), other=st.text())
def test_seeds_depend_on_their_purpose_alone(seed: int, key: str, other: str):
    assert derive_seed(seed, key) == derive_seed(seed, key)
    assert 0 <= derive_seed(seed, key) < 2**63
    if key != other:
        assert derive_seed(seed, key) != derive_seed(seed, other)


def test_seeds_are_the_same_on_every_machine():
    assert derive_seed(0, "layer", 3) == 5669860955383545959


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GB", 2_000_000_000), ("512MiB", 512 * 2**20), ("1.5k", 1500), (" 7 ", 7), ("3 gib", 3 * 2**30)],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2XB", "1e9", "2iB"])
def test_what_is_no_size_is_refused_with_an_example(text: str):
    with pytest.raises(OptionError, match="write it as 2GB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12 B"), (1300, "1.3 kB"), (2.5e9, "2.5 GB"), (3e14, "300.0 TB"), (123e6, "123 MB")],
)
def test_sizes_are_printed_short(count: float, text: str):
    assert format_bytes(count) == text


def test_a_budget_gives_the_rows_that_fit_or_says_the_least_that_would_do():
    assert MemoryBudget(1000).rows(10, fixed=500) == 50
    assert MemoryBudget(None).rows(10, most=7) == 7
    with pytest.raises(OptionError, match=r"at least 1\.1 kB and may take 1\.0 kB"):
        MemoryBudget(1000).rows(600, fixed=500)


@given(count=st.integers(1, 10**13))
def test_the_least_that_is_named_is_enough(count: int):
    with pytest.raises(OptionError, match="needs at least") as refused:
        MemoryBudget(1, base=1).require(count, "this")
    named = re.search(r"allow ([\d.]+ [kMGT]?B) or more", str(refused.value))
    assert named is not None
    assert parse_bytes(named[1]) >= count + 1
    MemoryBudget(parse_bytes(named[1]), base=1).require(count, "this")
