"""The source's side: Gram matrices, the head made Lipschitz, the cache, and proxies that are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import functional

from transship.data import Dataset
from transship.errors import DataError, MissingError, OptionError
from transship.verbs.adapt.model import source as module
from transship.verbs.adapt.model.backbone import Backbone
from transship.verbs.adapt.model.recalibrate import (
    Recalibration,
    gram_norms,
    grams,
    lipschitz_penalty,
    recalibrate,
)
from transship.verbs.adapt.model.source import SourceSide, open_source


def opened(backbone: Backbone, proxy: Any, cache: Path | None, **more: Any) -> SourceSide:
    return open_source(backbone, proxy, items=90, cache=cache, **({"omega": 0.5} | more))


def test_gram_norms_are_the_norms_of_autograds_gradients(tiny_bert: Backbone, proxy: Dataset):
    torch.manual_seed(0)
    weight, bias, mixing = torch.randn(3, 32), torch.randn(3), torch.randn(3, 3)
    texts, labels = [proxy.inputs[row] for row in (0, 31, 62, 5)], torch.tensor([0, 1, 2, 1])
    tokens, mask, _ = tiny_bert.source_pass(texts)
    body = tiny_bert.body()
    actual = grams(body, tokens.clone(), mask, mask, None, weight)

    tokens = tokens.clone().requires_grad_(True)
    share = mask.float() / mask.sum(1, keepdim=True)
    pooled = torch.einsum("itw,it->iw", body(tokens, mask), share)
    logits = functional.linear(pooled, mixing @ weight, bias)
    loss = functional.cross_entropy(logits, labels, reduction="sum")  # a sum: each item's own gradient
    (slopes,) = torch.autograd.grad(loss, tokens)
    expected = slopes.flatten(1).norm(dim=1)
    output = gram_norms(actual, mixing, logits.detach().softmax(1), labels)
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-5)


def evidence(seed: int = 0) -> Recalibration:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(120) % 3
    outputs = 3.0 * functional.one_hot(labels, 6).float() + torch.randn(120, 6, generator=generator)
    weight = 2.0 * torch.eye(3, 6)
    slopes = torch.randn(40, 3, 20, generator=generator)
    held_out = torch.arange(120) % 5 == 0
    items = (~held_out).nonzero().flatten()[:40]
    return Recalibration(outputs, labels, held_out, weight, torch.zeros(3), items, slopes @ slopes.mT)


def test_a_smaller_omega_leaves_smaller_gradients_and_costs_accuracy_at_most_within_the_tolerance():
    head = recalibrate(evidence())
    worst = [point.worst for point in head.grid]
    assert worst == sorted(worst)
    best = max(point.accuracy for point in head.grid)
    assert head.accuracy >= best - max(0.01, (best * (1 - best) / 24) ** 0.5) - 1e-9
    chosen = next(point for point in head.grid if point.omega == head.omega)
    assert all(point.accuracy < chosen.accuracy for point in head.grid if point.omega < head.omega)


def test_a_head_that_keeps_to_omega_already_is_left_as_it_is():
    facts = evidence()
    gentle = Recalibration(
        facts.outputs, facts.labels, facts.held_out, facts.weight, facts.bias, facts.items, 1e-6 * facts.grams
    )
    head = recalibrate(gentle, omega=0.5)
    torch.testing.assert_close(head.weight, facts.weight)
    assert float(lipschitz_penalty(head.norms, 0.5)) == 0.0


def test_omega_must_be_a_positive_number_or_grid():
    with pytest.raises(OptionError, match=r"ω is 0; give a number above 0, or \"grid\""):
        recalibrate(evidence(), omega=0)


def test_the_source_is_computed_once_and_read_from_the_cache_afterwards(
    tiny_bert: Backbone, proxy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = opened(tiny_bert, proxy, tmp_path)

    def never(*arguments: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(module, "_compute", never)
    second = opened(tiny_bert, proxy, tmp_path)
    for name, value in first.arrays().items():
        assert torch.equal(value, second.arrays()[name]), name
    other = opened(tiny_bert, proxy, tmp_path, omega=0.7)  # another ω needs no other pass
    assert other.omega == 0.7
    with pytest.raises(AssertionError, match="computed again"):
        opened(tiny_bert, proxy.subset(range(10, 90)), tmp_path)


def test_a_head_is_recalibrated_once_for_every_omega(
    tiny_bert: Backbone, proxy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []

    def counted(evidence: Recalibration, *, omega: Any) -> Any:
        asked.append(omega)
        return recalibrate(evidence, omega=omega)

    monkeypatch.setattr(module, "recalibrate", counted)
    first, second = (opened(tiny_bert, proxy, tmp_path, omega=0.5) for _ in range(2))
    other = opened(tiny_bert, proxy, tmp_path, omega=0.05)
    assert asked == [0.5, 0.05]
    for name, value in first.arrays().items():
        assert torch.equal(value, second.arrays()[name]), name
    assert first.about() == second.about()
    assert not torch.equal(first.weight, other.weight)
    kept = next(tmp_path.rglob("head-0.5.safetensors"))
    kept.write_bytes(kept.read_bytes()[:-8])
    assert torch.equal(opened(tiny_bert, proxy, tmp_path, omega=0.5).weight, first.weight)
    assert asked == [0.5, 0.05, 0.5]  # what was cut short is made again


def test_features_are_token_means_without_padding_and_the_head_knows_its_classes(
    tiny_bert: Backbone, proxy: Dataset, tmp_path: Path
):
    source = opened(tiny_bert, proxy, tmp_path)
    tokens, mask, states = tiny_bert.source_pass([proxy.inputs[7]])
    torch.testing.assert_close(source.features[7], tokens[0][mask[0]].mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(source.outputs[7], states[0][mask[0]].mean(0), atol=1e-5, rtol=1e-4)
    assert source.accuracy > 0.8
    probabilities = source.probabilities(states)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(1))


def test_a_cache_that_was_cut_short_is_filled_again(tiny_bert: Backbone, proxy: Dataset, tmp_path: Path):
    first = opened(tiny_bert, proxy, tmp_path)
    file = next(tmp_path.rglob("source.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    second = opened(tiny_bert, proxy, tmp_path)
    assert torch.equal(first.features, second.features)


def test_a_home_that_cannot_be_written_to_costs_the_cache_alone(
    tiny_bert: Backbone, proxy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = opened(tiny_bert, proxy, tmp_path / "cache")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))  # not even root can make a folder in a file
    unkept = opened(tiny_bert, proxy, None)
    assert torch.equal(unkept.features, kept.features)
    assert torch.equal(unkept.weight, kept.weight)
    with pytest.raises(OSError, match="Not a directory"):
        opened(tiny_bert, proxy, tmp_path / "file" / "cache")


def dataset(labels: Any, names: tuple[str, ...], kind: Any = "text") -> Dataset:
    inputs: Any = ["a red dog"] * len(labels) if kind == "text" else np.zeros((len(labels), 4))
    return Dataset("mine", kind, inputs, np.asarray(labels), names)


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        (dataset([0] * 9, ("only",)), r"proxy mine: all its rows are of one class \(only\)"),
        (dataset([0] * 9 + [1] * 2, ("many", "few")), "class 'few' has 2 rows"),
        (dataset([0, 1] * 9, ("a", "b"), "series"), "it holds series and .* reads text"),
        (Dataset("mine", "text", ["a"] * 5), "it has no class labels"),
    ],
)
def test_unfit_proxies_are_one_sentence(tiny_bert: Backbone, proxy: Dataset, message: str, tmp_path: Path):
    with pytest.raises(DataError, match=message):
        opened(tiny_bert, proxy, tmp_path)


def test_a_backbone_without_a_head_and_without_a_proxy_is_one_sentence(
    tiny_bert: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRANSSHIP_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(MissingError, match="carries no head that names its source's labels, and no proxy"):
        opened(tiny_bert, "auto", tmp_path)
    with pytest.raises(OptionError, match="proxy: the method needs labelled data"):
        opened(tiny_bert, None, tmp_path)


def test_pictures_kept_as_numbers_are_a_proxy_of_a_vision_body(tmp_path: Path):
    file = tmp_path / "pictures.npz"
    np.savez(file, x=np.zeros((12, 1, 8, 8), np.float32), label=np.arange(12) % 2)
    sees = cast(Backbone, SimpleNamespace(reads="image", name="sees"))
    checked_proxy = module.checked_proxy(str(file), sees)
    assert checked_proxy.kind == "array"
    assert list(checked_proxy.label_names) == ["0", "1"]
