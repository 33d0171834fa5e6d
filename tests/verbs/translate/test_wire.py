"""Two machines give what one machine gives, and refuse what does not belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transship.errors import DataError, OptionError
from transship.verbs.translate import Agreement, Half, InverseRelativeProjection, KernelRidge, Ridge, Wire

METHODS = {
    "irp on source": InverseRelativeProjection(prune_on="source", delta=0.4, subspaces=4),
    "irp on target": InverseRelativeProjection(prune_on="target", delta=0.4, subspaces=4),
    "irp completed": InverseRelativeProjection(prune_on="target", delta=0.5, subspaces=4, completion=True),
    "irp tikhonov": InverseRelativeProjection(regularize=1.0),
    "ridge": Ridge(alpha=2.0),
    "kernel": KernelRidge(gamma=0.5, alpha=0.05),
}
IDS = [f"row {number}" for number in range(60)]


@pytest.fixture
def anchors():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 9)) + 1
    y = np.tanh(x @ rng.normal(size=(9, 7))) + 0.05 * rng.normal(size=(80, 7))
    return x, y


def halves(method, x, y):
    prunes_on_source = getattr(method, "prune_on", "source") == "source"
    own, other = (x, y) if prunes_on_source else (y, x)
    agreement = method.agree(own, IDS, other.shape[1])
    return method.fit_encoder(x, IDS, agreement), method.fit_decoder(y, IDS, agreement)


@pytest.mark.parametrize("name", METHODS)
def test_two_machines_give_what_one_gives_also_through_files(name: str, anchors, tmp_path: Path):
    x, y = anchors
    method = METHODS[name]
    encoder, decoder = halves(method, x[:60], y[:60])
    expected = method.fit(x[:60], y[:60]).transform(x[60:])
    np.testing.assert_allclose(decoder.decode(encoder.encode(x[60:])), expected, atol=1e-6)

    encoder.save(tmp_path / "encoder")
    decoder.save(tmp_path / "decoder")
    Half.load(tmp_path / "encoder", "encoder").encode(x[60:]).save(tmp_path / "wire")
    decoded = Half.load(tmp_path / "decoder", "decoder").decode(Wire.load(tmp_path / "wire"))
    np.testing.assert_allclose(decoded, expected, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_no_half_holds_the_other_sides_width(name: str, anchors):
    x, y = anchors
    encoder, decoder = halves(METHODS[name], x[:60], y[:60])
    assert all(7 not in array.shape for array in encoder.arrays.values())
    assert all(9 not in array.shape for array in decoder.arrays.values())


@pytest.mark.parametrize("name", METHODS)
def test_other_anchors_are_refused(name: str, anchors):
    x, y = anchors
    method = METHODS[name]
    encoder, _ = halves(method, x[:60], y[:60])
    with pytest.raises(DataError, match="not the 60 agreed ones"):
        method.fit_decoder(y[:60], IDS[::-1], encoder.agreement)
    with pytest.raises(DataError, match="not the 60 agreed ones"):
        method.fit_decoder(y[:59], IDS[:59], encoder.agreement)


@pytest.mark.parametrize("name", METHODS)
def test_rows_of_another_agreement_are_refused(name: str, anchors):
    x, y = anchors
    encoder, decoder = halves(METHODS[name], x[:60], y[:60])
    wire = encoder.encode(x[60:])
    with pytest.raises(DataError, match="encoded under agreement"):
        decoder.decode(Wire(wire.values, "0" * 32))
    with pytest.raises(DataError, match="this half is the encoder"):
        encoder.decode(wire)
    with pytest.raises(DataError, match="rows of shape"):
        encoder.encode(x[:, :4])


@pytest.mark.parametrize("name", ["ridge", "kernel"])
def test_the_decoder_can_tell_the_encoder_how_good_it_is(name: str, anchors):
    x, y = anchors
    method = METHODS[name]
    encoder, decoder = halves(method, x[:60], y[:60])
    expected = method.fit(x[:60], y[:60]).leave_one_out(x[:60], y[:60])
    np.testing.assert_allclose(decoder.leave_one_out(encoder.encode(x[:60])), expected, atol=1e-6)
    with pytest.raises(DataError, match="not that of all anchors"):
        decoder.leave_one_out(encoder.encode(x[:59]))


def test_without_a_penalty_the_encoder_takes_the_mean_squared_distance(anchors):
    x, _ = anchors
    agreement = Ridge().agree(x[:60], IDS)
    expected = np.square(x[:60] - x[:60].mean(0)).sum(1).mean()
    np.testing.assert_allclose(agreement.parameters["alpha"], expected)


def test_an_agreement_travels_as_json_and_a_broken_one_is_refused(anchors, tmp_path: Path):
    x, _ = anchors
    agreement = METHODS["irp on source"].agree(x[:60], IDS, 7)
    agreement.save(tmp_path / "agreement.json")
    assert Agreement.load(tmp_path / "agreement.json").signature() == agreement.signature()
    text = (tmp_path / "agreement.json").read_text()
    (tmp_path / "agreement.json").write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="cut short"):
        Agreement.load(tmp_path / "agreement.json")


def test_pruning_on_both_spaces_needs_one_machine(anchors):
    with pytest.raises(OptionError, match="needs both on one machine"):
        InverseRelativeProjection(prune_on="both").agree(anchors[0], IDS, 7)
