"""Symbols as targets: splice sites of DNA, two generated grammars, and the language of some bytes of text."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.random import Generator

from transship.data import load
from transship.numerics import derive_seed
from transship.types import Array
from transship_suites.materials.targets import TEST_SEED, Target, cut_task, drawn_task

LENGTH = 64  # of generated rows and of pieces of text
KINDS = 8  # symbols of the automata
_FOLLOWS = 0.6  # how often an automaton obeys its table
# language → files of the installed libraries that are written in it; English is that of news
_FILES: Mapping[str, str] = {
    "C++": "torch/include/ATen/*.h",
    "Cython": "sklearn/**/*.pyx",
    "Python": "sklearn/**/*.py",
}


def symbol_task(name: str, *, rows: int | None, test: int | None, seed: int) -> Target:
    """Return a task of one-hot symbols [rows, symbols, length]; arguments as of `series_task`."""
    if name in _GRAMMARS:
        train, held = (
            _GRAMMARS[name](count, np.random.default_rng(derive_seed(part, name)))
            for count, part in ((rows or 1000, seed), (test or 1000, TEST_SEED))
        )
        return cut_task(name, train, held, seed, {"kind": "tokens"})
    train, held = (_splice if name == "splice" else _languages)()
    return drawn_task(name, train, held, rows=rows, test=test, seed=seed, kind="tokens")


def one_hot(ids: Array, kinds: int) -> Array:
    """Return ids [rows, length] as one-hot channels [rows, kinds, length]."""
    channels: Array = np.eye(kinds, dtype=np.float32)[ids].transpose(0, 2, 1)
    return channels


def automata(rows: int, generator: Generator) -> tuple[Array, Array]:
    """Return rows of four automata, in which the next symbol goes by the two before it.

    All symbols, and all pairs, are as frequent in every class: only three in a row tell the classes apart.
    """
    labels = generator.integers(0, 4, rows)
    ids = generator.integers(0, KINDS, (rows, LENGTH))
    for place in range(2, LENGTH):
        first, second = ids[:, place - 2], ids[:, place - 1]
        obeyed = (first + (2 * labels + 1) * second) % KINDS
        ids[:, place] = np.where(generator.random(rows) < _FOLLOWS, obeyed, ids[:, place])
    return one_hot(ids, KINDS), labels


def brackets(rows: int, generator: Generator) -> tuple[Array, Array]:
    """Return balanced rows of three kinds of brackets; in class 1 one pair closes with another kind.

    Counts are next to equal, and a pair may be far apart: what decides is which bracket is still open.
    """
    labels, ids = generator.integers(0, 2, rows), np.empty((rows, LENGTH), np.int64)
    for row, label in enumerate(labels):
        pairs: list[tuple[int, int, int]] = []
        stack: list[tuple[int, int]] = []
        for place in range(LENGTH):
            left = LENGTH - place
            opens = not stack or (len(stack) < left and generator.random() < 0.5)
            if opens:
                stack.append((place, int(generator.integers(0, 3))))
                ids[row, place] = stack[-1][1]
            else:
                pairs.append((*stack.pop(), place))
                ids[row, place] = 3 + pairs[-1][1]
        if label:
            _, kind, closing = pairs[generator.integers(0, len(pairs))]
            ids[row, closing] = 3 + (kind + generator.integers(1, 3)) % 3
    return one_hot(ids, 6), labels


_GRAMMARS: Mapping[str, Callable[[int, Generator], tuple[Array, Array]]] = {
    "automata": automata,
    "brackets": brackets,
}


@cache
def _splice() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the splice sites: the test split, and all others to draw from."""
    data = load("dna_splice", "text")
    assert data.labels is not None
    assert data.splits is not None
    letters = np.array([list(text) for text in data.inputs])
    channels = one_hot(np.searchsorted(np.array(list("ACGT")), letters), 4)
    held = data.splits == "test"
    return (channels[~held], data.labels[~held]), (channels[held], data.labels[held])


@cache
def _languages() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return pieces of `LENGTH` bytes of text: the last fifth of every language's text is for the test."""
    packages = Path(sysconfig.get_paths()["purelib"])
    texts = ["\n".join(map(str, load("ag_news", "text").inputs))]
    for pattern in _FILES.values():
        files = sorted(packages.glob(pattern))[:200]
        texts.append("\n".join(file.read_text(encoding="utf-8", errors="ignore") for file in files))
    pieces = [_pieces(text) for text in texts]
    sides = []
    for first, last in ((0.0, 0.8), (0.8, 1.0)):
        cut = [part[int(first * len(part)) : int(last * len(part))] for part in pieces]
        labels = np.repeat(np.arange(len(cut)), list(map(len, cut)))
        sides.append((one_hot(np.concatenate(cut), 128), labels))
    return sides[0], sides[1]


def _pieces(text: str, most: int = 1500) -> Array:
    """Return bytes [pieces, LENGTH] from all over a text in ASCII, any white space as one space."""
    plain = " ".join(text.split()).encode("ascii", "ignore")
    starts = np.linspace(0, len(plain) - LENGTH, most).astype(int)
    whole = np.frombuffer(plain, np.uint8)
    pieces: Array = np.stack([whole[start : start + LENGTH] for start in starts]).astype(np.int64)
    return pieces
