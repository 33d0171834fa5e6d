"""Small convolutional networks on scikit-learn's digits, trained apart: layers compared, heads stitched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from transship.data import Dataset, digits
from transship.geometry import CkaAccumulator, Moments, accuracy, procrustes, ridge
from transship_suites.materials.small_vision import to_arrays
from transship_suites.runner import Case, Context, Measurement

LAYERS = 6


def measured(case: Case, context: Context) -> list[Measurement]:
    """Measure one pair of networks, on one thread: networks so small gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(_measure(case, digits(kind="array", seed=context.seed("split")), context))
    finally:
        torch.set_num_threads(threads)


def _measure(case: Case, data: Dataset, context: Context) -> Iterator[Measurement]:
    if case["part"] == "layers":
        first, second = (_network(context, data, case["width"], copy) for copy in (0, 1))
        yield from _compare_layers(first, second, data.split("test"), context)
    else:
        source = _network(context, data, case["source"], 0)
        target = _network(context, data, case["target"], 1)
        yield from _stitch(source, target, data, context)


def _network(context: Context, data: Dataset, width: int, copy: int) -> nn.ModuleDict:
    """Return a trained network of this seed; copies differ in initial weights and order of batches."""
    train = data.split("train")
    settings = {"width": width, "epochs": context.options["epochs"]}
    settings["seed"] = context.seed("network", width, copy)
    arrays = context.cached(
        "shared-geometry",
        {**settings, "data": train.fingerprint(), "layers": LAYERS},
        lambda: to_arrays(_train(train, **settings)),
        code=(_train, _build),
    )
    network = _build(width)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return network.eval()


def _build(width: int) -> nn.ModuleDict:
    """Return six 3×3 convolutions at 8×8, 4×4 and 2×2 pixels, the width doubling each time, and a head."""
    blocks, channels = [], 1
    for layer in range(LAYERS):
        stage = layer // 2
        wider = width * 2**stage
        stride = 2 if layer in (2, 4) else 1
        convolution = nn.Conv2d(channels, wider, 3, stride=stride, padding=1, bias=False)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(wider), nn.ReLU()))
        channels = wider
    return nn.ModuleDict({"blocks": nn.ModuleList(blocks), "head": nn.Linear(channels, 10)})


def _train(data: Dataset, width: int, epochs: int, seed: int) -> nn.ModuleDict:
    """Train a network from its seed with AdamW on the labels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _build(width)
    order = torch.Generator().manual_seed(seed)
    images, labels = torch.from_numpy(data.inputs)[:, None], torch.from_numpy(data.labels)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels), generator=order), 64):
            optimiser.zero_grad()
            loss = cross_entropy(network["head"](_features(network, images[batch])[-1]), labels[batch])
            torch.autograd.backward(loss)
            optimiser.step()
    return network


def _features(network: nn.ModuleDict, images: Tensor) -> list[Tensor]:
    """Return every convolution's output, flattened, and last the mean over pixels that the head reads."""
    features, hidden = [], images
    for block in network["blocks"].children():
        hidden = block(hidden)
        features.append(hidden.flatten(1))
    return [*features, hidden.mean((2, 3))]


def _on(network: nn.ModuleDict, data: Dataset) -> list[Tensor]:
    with torch.inference_mode():
        return _features(network, torch.from_numpy(data.inputs)[:, None])


def _compare_layers(
    first: nn.ModuleDict, second: nn.ModuleDict, test: Dataset, context: Context
) -> Iterator[Measurement]:
    """Measure every index of similarity between all layers of two networks."""
    a, b = (_on(network, test)[:LAYERS] for network in (first, second))
    for index, similarity in _similarities(a, b).items():
        context.attach(index, similarity.tolist())
        diagonal = similarity.diagonal()
        others = (similarity.sum() - diagonal.sum()) / (LAYERS * (LAYERS - 1))
        layers = torch.arange(LAYERS)
        shares = [(similarity.argmax(axis) == layers).double().mean() for axis in (0, 1)]
        same = {"same layer": float(diagonal.mean()), "other layers": float(others)}
        yield Measurement({"index": index}, {"identified": float(sum(shares) / 2), **same})


def _similarities(a: Sequence[Tensor], b: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return a layers × layers matrix per index of Kornblith et al., Table 1.

    With Q an orthonormal basis of a centred representation: the mean canonical correlation is
    ‖Q_bᵀ Q_a‖_* / p, linear regression explains the share ‖Q_bᵀ A‖² / ‖A‖² of A (symmetrised, as they do).
    """
    cka = CkaAccumulator(len(a), len(b))
    cka.update(a, b)
    centred = [[layer.double() - layer.double().mean(0) for layer in side] for side in (a, b)]
    bases = [[_basis(layer) for layer in side] for side in centred]
    correlation, regression = torch.zeros(2, len(a), len(b), dtype=torch.float64)
    for i, (layer_a, basis_a) in enumerate(zip(centred[0], bases[0], strict=True)):
        for j, (layer_b, basis_b) in enumerate(zip(centred[1], bases[1], strict=True)):
            smaller = min(basis_a.shape[1], basis_b.shape[1])
            correlation[i, j] = torch.linalg.svdvals(basis_a.T @ basis_b).sum() / smaller
            share_a = (basis_b.T @ layer_a).square().sum() / layer_a.square().sum()
            share_b = (basis_a.T @ layer_b).square().sum() / layer_b.square().sum()
            regression[i, j] = (share_a + share_b) / 2
    return {"cka": cka.matrix(), "cca": correlation, "regression": regression}


def _basis(centred: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns that carry anything beyond rounding."""
    u, values, _ = torch.linalg.svd(centred, full_matrices=False)
    basis: Tensor = u[:, values > 1e-6 * values[0]]
    return basis


def _stitch(
    source: nn.ModuleDict, target: nn.ModuleDict, data: Dataset, context: Context
) -> Iterator[Measurement]:
    """Measure the target's head on the source's features, carried over by maps fitted on few inputs."""
    train, test = data.split("train"), data.split("test")
    head, labels = target["head"], test.labels
    ours, theirs = _on(source, test)[-1], _on(target, test)[-1]

    def score(features: Tensor) -> dict[str, float]:
        with torch.inference_mode():
            return {"accuracy": accuracy(head(features).argmax(1).numpy(), labels)}

    missing = max(0, theirs.shape[1] - ours.shape[1])
    yield Measurement({"method": "native"}, score(theirs))
    yield Measurement({"method": "untranslated"}, score(pad(ours, (0, missing))[:, : theirs.shape[1]]))
    for samples in context.options["samples"]:
        anchors = train.take(samples, seed=context.seed("anchors", samples))
        moments = Moments.of(_on(source, anchors)[-1], _on(target, anchors)[-1])
        maps = {"procrustes": procrustes(moments, centre=True, scale=True), "ridge": ridge(moments)}
        for method, fitted in maps.items():
            yield Measurement({"method": method, "samples": samples}, score(fitted.apply(ours)))
