"""Maps at rest: what was saved comes back, what is broken is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transship.errors import DataError, OutputError
from transship.registry import build_method, method_names
from transship.verbs.translate import Ridge, apply_map, load_map, save_map, unit_rows


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6))
    return x, x @ rng.normal(size=(6, 5)) + 0.1 * rng.normal(size=(50, 5))


@pytest.mark.parametrize("name", method_names("translate"))
def test_every_method_comes_back_as_it_was_saved(name: str, rows, tmp_path: Path):
    x, y = rows
    fitted = build_method("translate", name).fit(x, y, ids=range(50))
    saved = save_map(fitted, tmp_path / "map", {"source": "old", "quality": {"cosine": 0.5}})
    loaded = load_map(tmp_path / "map")
    assert loaded.hash == saved.hash
    assert loaded.about == {"source": "old", "quality": {"cosine": 0.5}}
    assert loaded.translator.get_params() == fitted.get_params()
    assert loaded.translator.anchors_hash_ == fitted.anchors_hash_
    np.testing.assert_array_equal(loaded.translator.transform(x), fitted.transform(x))
    np.testing.assert_array_equal(
        loaded.translator.inverse_transform(fitted.transform(x)),
        fitted.inverse_transform(fitted.transform(x)),
    )
    assert {file.name for file in (tmp_path / "map").glob("[!.]*")} == {"map.json", "map.safetensors"}


def test_the_hash_names_what_the_map_computes_and_not_its_story(rows, tmp_path: Path):
    fitted = Ridge(alpha=1.0).fit(*rows)
    first = save_map(fitted, tmp_path / "a", {"source": "one"})
    second = save_map(fitted, tmp_path / "b", {"source": "two"})
    third = save_map(Ridge(alpha=2.0).fit(*rows), tmp_path / "c")
    assert first.hash == second.hash != third.hash


def test_an_existing_map_is_kept_without_force(rows, tmp_path: Path):
    fitted = Ridge().fit(*rows)
    first = save_map(fitted, tmp_path / "map")
    with pytest.raises(OutputError, match="exists already"):
        save_map(fitted, tmp_path / "map")
    assert save_map(Ridge(alpha=9.0).fit(*rows), tmp_path / "map", force=True).hash != first.hash


@pytest.mark.parametrize("file", ["map.json", "map.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_map_cut_short_is_one_sentence(rows, tmp_path: Path, file: str, share: float):
    save_map(Ridge().fit(*rows), tmp_path / "map")
    whole = (tmp_path / "map" / file).read_bytes()
    (tmp_path / "map" / file).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match="cut short"):
        load_map(tmp_path / "map")


def test_a_changed_number_is_noticed(rows, tmp_path: Path):
    save_map(Ridge().fit(*rows), tmp_path / "map")
    data = bytearray((tmp_path / "map" / "map.safetensors").read_bytes())
    data[-3] ^= 1
    (tmp_path / "map" / "map.safetensors").write_bytes(bytes(data))
    with pytest.raises(DataError, match="changed after it was written"):
        load_map(tmp_path / "map")


def test_what_is_no_map_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"holds no map\.json"):
        load_map(tmp_path)
    (tmp_path / "map.json").write_text('{"format": "other"}')
    with pytest.raises(DataError, match="is not a translator"):
        load_map(tmp_path)
    (tmp_path / "map.json").write_text('{"format": "transship.translator", "version": 99}')
    with pytest.raises(DataError, match="has version 99"):
        load_map(tmp_path)


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_a_finite_row_that_the_map_makes_infinite_is_refused_by_its_id(value: float, tmp_path: Path):
    rows = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    fitted = Ridge().fit(rows, 4 * rows)
    saved = save_map(fitted, tmp_path / "map", {"unit_target": True})
    rows[41] = value
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(DataError, match=r"1 of 80 vectors become NaN or infinity .* is id 41"):
        list(apply_map(saved, str(tmp_path / "rows.npy"), str(tmp_path / "out.npy")))
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-12, 1.0, 1e12, 1e30, 1e38])
def test_rows_of_any_length_have_a_direction(scale: float):
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]], np.float32)
    np.testing.assert_allclose(
        unit_rows(rows / 4 * np.float32(scale)), [[0.6, 0.8], [0, 0], [-1, 0]], atol=1e-5
    )
