"""Networks trained apart share a geometry: CKA finds corresponding layers, a rotation carries features over.

Digits of scikit-learn, small convolutional networks of several widths; everything is trained here in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transship_suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Curve,
    Measurement,
    Need,
    Options,
    Paper,
    Row,
    Scale,
    Suite,
    SuiteResult,
    Table,
    cell,
    highest,
    product,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from transship.data import Dataset
    from transship.report import Figure

LAYERS = 6
WIDTH = 16  # on which claims are judged: both scales have it
PAIRS = ((WIDTH, WIDTH), (WIDTH // 2, WIDTH), (WIDTH, WIDTH // 2))


def cases(options: Options) -> list[dict[str, Any]]:
    """Return a comparison of layers per width, and a stitching between a pair of widths each way."""
    pairs = [{"part": "stitch", "source": source, "target": target} for source, target in PAIRS]
    return [*product(part=["layers"], width=options["widths"]), *pairs]


def run(case: Case, context: Context) -> list[Measurement]:
    """Measure one pair of networks, on one thread: networks so small gain nothing from more."""
    import torch

    from transship.data import digits

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
    import torch

    train = data.split("train")
    settings = {
        "width": width,
        "epochs": context.options["epochs"],
        "seed": context.seed("network", width, copy),
    }

    def make() -> dict[str, Any]:
        trained = _train(train, **settings)
        return {name: tensor.numpy() for name, tensor in trained.state_dict().items()}

    parts = {**settings, "data": train.fingerprint(), "layers": LAYERS}
    arrays = context.cached("shared-geometry", parts, make, code=(_train, _build))
    network = _build(width)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return network.eval()


def _build(width: int) -> nn.ModuleDict:
    """Return six 3×3 convolutions at 8×8, 4×4 and 2×2 pixels, the width doubling each time, and a head."""
    from torch import nn

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
    import torch
    from torch.nn.functional import cross_entropy

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
    import torch

    with torch.inference_mode():
        return _features(network, torch.from_numpy(data.inputs)[:, None])


def _compare_layers(
    first: nn.ModuleDict, second: nn.ModuleDict, test: Dataset, context: Context
) -> Iterator[Measurement]:
    """Measure every index of similarity between all layers of two networks."""
    import torch

    a, b = (_on(network, test)[:LAYERS] for network in (first, second))
    for index, similarity in _similarities(a, b).items():
        context.attach(index, similarity.tolist())
        diagonal = similarity.diagonal()
        others = (similarity.sum() - diagonal.sum()) / (LAYERS * (LAYERS - 1))
        layers = torch.arange(LAYERS)
        found = [(similarity.argmax(axis) == layers).double().mean() for axis in (0, 1)]
        same = {"same layer": float(diagonal.mean()), "other layers": float(others)}
        yield Measurement({"index": index}, {"identified": float(sum(found) / 2), **same})


def _similarities(a: Sequence[Tensor], b: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return a layers × layers matrix per index of Kornblith et al., Table 1.

    With Q an orthonormal basis of a centred representation: the mean canonical correlation is
    ‖Q_bᵀ Q_a‖_* / p, linear regression explains the share ‖Q_bᵀ A‖² / ‖A‖² of A (symmetrised, as they do).
    """
    import torch

    from transship.geometry import CkaAccumulator

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
    import torch

    u, values, _ = torch.linalg.svd(centred, full_matrices=False)
    basis: Tensor = u[:, values > 1e-6 * values[0]]
    return basis


def _stitch(
    source: nn.ModuleDict, target: nn.ModuleDict, data: Dataset, context: Context
) -> Iterator[Measurement]:
    """Measure the target's head on the source's features, carried over by maps fitted on few inputs."""
    import torch
    from torch.nn.functional import pad

    from transship.geometry import Moments, accuracy, procrustes, ridge

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


def figures(result: SuiteResult) -> list[Figure]:
    """Draw the mean similarity of all pairs of layers, per index, for the width that claims are judged on."""
    from transship.report.figures import heat_map

    chosen = [one for one in result.cases if one.case.factors.get("width") == WIDTH]
    names = [f"layer {layer + 1}" for layer in range(LAYERS)]
    drawn = []
    for index, title in (
        ("cka", "linear CKA"),
        ("cca", "mean CCA correlation"),
        ("regression", "linear regression"),
    ):
        matrices = [one.attachments[index] for one in chosen]
        mean = [
            [sum(matrix[i][j] for matrix in matrices) / len(matrices) for j in range(LAYERS)]
            for i in range(LAYERS)
        ]
        drawn.append(
            heat_map(
                mean,
                rows=names,
                columns=names,
                row_title="first network",
                column_title="second network",
                value_title=title,
                caption=f"{title[0].upper()}{title[1:]} of two networks of width {WIDTH}, mean over seeds.",
                square=True,
            )
        )
    return drawn


def _stitched(method: str, **where: Any) -> Any:
    return cell("accuracy", method=method, source=WIDTH // 2, target=WIDTH, **where)


_INDEXES = (
    Row("CKA (linear)", {"index": "cka"}),
    Row("CCA (mean correlation)", {"index": "cca"}),
    Row("linear regression", {"index": "regression"}),
)
_SETTING = (
    "the paper has ten networks of ten layers on CIFAR-10 and its 10,000 test images, compared in all pairs; "
    f"we have a pair of six-layer networks of width {WIDTH} per seed, on 8×8 digits and 359 test images"
)

suite = Suite(
    title="Networks trained apart share a geometry",
    summary=(
        "Small convolutional networks are trained on scikit-learn's digits from other initial weights. Do "
        "indexes of similarity find the layer of the other network that corresponds? And does one rotation, "
        "fitted on a few unlabelled inputs, carry the last features of one network to the head of another, "
        "of the same or of another width?"
    ),
    paper=Paper(
        "Similarity of Neural Network Representations Revisited",
        authors="Kornblith, Norouzi, Lee and Hinton",
        where="ICML 2019, Table 2 and Figure 6",
        link="https://arxiv.org/abs/1905.00414",
    ),
    claims=(
        Claim(
            text="CKA reliably finds the corresponding layer of a network with other initial weights.",
            quantity=cell("identified", index="cka", width=WIDTH),
            at_least=0.9,
            source="Section 6.1, Table 2",
        ),
        Claim(
            text="CKA finds corresponding layers more often than CCA and linear regression do.",
            quantity=cell("identified", index="cka", width=WIDTH)
            - highest(
                cell("identified", index="cca", width=WIDTH),
                cell("identified", index="regression", width=WIDTH),
            ),
            at_least=0.0,
            source="Section 6.1, Table 2",
        ),
        Claim(
            text="By CKA, the same layer of two networks is more alike than different layers are.",
            quantity=cell("same layer", index="cka", width=WIDTH)
            - cell("other layers", index="cka", width=WIDTH),
            at_least=0.05,
            source="Section 6.1, Figure 2",
        ),
        Claim(
            text="Wider networks are more alike: CKA of the same layer grows from width 4 to 16.",
            quantity=cell("same layer", index="cka", width=WIDTH) - cell("same layer", index="cka", width=4),
            at_least=0.0,
            source="Section 6.2, Figure 6",
        ),
        Claim(
            text="A rotation fitted on 200 unlabelled inputs stitches a narrower network to a wider one's "
            "head at a loss of at most 2 points.",
            quantity=_stitched("native") - _stitched("procrustes", samples=200),
            at_most=0.02,
            source="ours",
        ),
        Claim(
            text="Without the rotation the head is of no use: stitching gains at least 50 points over it.",
            quantity=_stitched("procrustes", samples=200) - _stitched("untranslated"),
            at_least=0.5,
            source="ours",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=3, minutes=0.8, options={"widths": [4, 16], "epochs": 6, "samples": [50, 200, 1000]}
        ),
        "full": Scale(
            seeds=6, minutes=4, options={"widths": [4, 8, 16, 32], "epochs": 10, "samples": [50, 200, 1000]}
        ),
    },
    cases=cases,
    run=run,
    tables=(
        Table(
            title="Corresponding layers found",
            rows=_INDEXES,
            columns=(
                Column("layers found", cell("identified", width=WIDTH), percent=True, digits=1),
                Column("similarity of the same layer", cell("same layer", width=WIDTH)),
                Column("of other layers", cell("other layers", width=WIDTH)),
            ),
            paper={
                ("CKA (linear)", "layers found"): 99.3,
                ("CCA (mean correlation)", "layers found"): 1.4,
                ("linear regression", "layers found"): 45.4,
            },
            paper_source="Table 2 of Kornblith et al.",
            setting=_SETTING,
        ),
        Table(
            title="Accuracy of the target's head on the source's features",
            rows=(
                Row("the target's own features", {"method": "native"}),
                Row("untranslated", {"method": "untranslated"}),
                *(
                    Row(f"{method}, {samples} inputs", {"method": method, "samples": samples})
                    for method in ("procrustes", "ridge")
                    for samples in (50, 200, 1000)
                ),
            ),
            columns=tuple(
                Column(
                    f"width {source} to {target}",
                    cell("accuracy", source=source, target=target),
                    percent=True,
                    digits=1,
                )
                for source, target in PAIRS
            ),
        ),
    ),
    curves=(
        Curve(
            title="Layers found, by width",
            x="width",
            quantity="identified",
            lines=_INDEXES,
            x_title="width of the first layer (channels)",
            y_title="share of layers found",
            log_x=True,
        ),
        Curve(
            title="Accuracy after stitching, by number of inputs",
            x="samples",
            quantity=cell("accuracy", source=WIDTH // 2, target=WIDTH),
            lines=(Row("procrustes", {"method": "procrustes"}), Row("ridge", {"method": "ridge"})),
            x_title="unlabelled inputs the map was fitted on",
            y_title="accuracy",
            log_x=True,
        ),
    ),
    figures=figures,
    needs=(Need("data", "digits", "comes with scikit-learn", license="CC BY 4.0"),),
)
