"""Symbols that are generated: each grammar is decided by what its page says."""

import numpy as np
import pytest

from transship_suites.materials.symbols import LENGTH, automata, brackets, symbol_task
from transship_suites.recraft.measure import raw


def test_single_symbols_and_pairs_say_nothing_of_an_automaton_and_three_in_a_row_do():
    channels, labels = automata(2000, np.random.default_rng(0))
    ids = channels.argmax(1)
    for label in range(4):
        own = ids[labels == label]
        pairs = np.bincount((8 * own[:, :-1] + own[:, 1:]).ravel(), minlength=64) / own[:, 1:].size
        assert np.abs(64 * pairs - 1).max() < 0.25
        obeyed = (own[:, :-2] + (2 * label + 1) * own[:, 1:-1]) % 8 == own[:, 2:]
        assert 0.6 < obeyed.mean() < 0.7  # 0.6 by the table, and an eighth of the rest


def closes(row: np.ndarray) -> bool:
    """Return whether every bracket closes the last one open with its own kind."""
    stack: list[int] = []
    for symbol in row:
        if symbol < 3:
            stack.append(int(symbol))
        elif not stack or stack.pop() != symbol - 3:
            return False
    return not stack


def test_brackets_close_in_class_0_and_one_does_not_in_class_1():
    channels, labels = brackets(200, np.random.default_rng(1))
    assert channels.shape == (200, 6, LENGTH)
    assert [closes(row) for row in channels.argmax(1)] == (labels == 0).tolist()


@pytest.mark.parametrize("name", ["automata", "brackets"])
def test_rows_go_by_the_seed_and_test_rows_do_not(name: str):
    first, again, other = (symbol_task(name, rows=40, test=30, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.train[0], again.train[0])
    assert not np.array_equal(first.train[0], other.train[0])
    assert np.array_equal(first.test[0], other.test[0])
    assert (len(first.train[0]), len(first.validation[0])) == (32, 8)


def test_raw_models_of_symbols_count_and_look_at_places():
    task = symbol_task("automata", rows=300, test=200, seed=0)
    accuracy = {row.factors["method"]: row.metrics["accuracy"] for row in raw(task, seed=0, kernels=50)}
    assert set(accuracy) == {"constant", "logistic", "ridge", "ngrams", "rocket", "forest"}
    assert accuracy["ngrams"] > 0.5 > max(accuracy["logistic"], accuracy["ridge"])
