"""Changing the embedding model of an index: what translated rows, rescoring and lazy migration are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transship_suites.irp.declared import PAPER
from transship_suites.materials.origins import packaged_data, packaged_models
from transship_suites.runner import (
    Claim,
    Condition,
    Heading,
    MeasuredBy,
    Measurement,
    Options,
    PaperTable,
    Quantity,
    Scale,
    Suite,
    cell,
)
from transship_suites.runner.quantities import Combined, MetricMean

MODELS = ("minilm-l3", "minilm-l6", "bge-small", "granite-small", "mpnet-base")
PAIRS = tuple((source, target) for source in MODELS for target in MODELS if source != target)
QUICK_PAIRS = (("minilm-l3", "minilm-l6"), ("minilm-l6", "bge-small"), ("bge-small", "minilm-l6"))
MAPS = ("latentis recipe", "IRP (paper)", "IRP (Tikhonov)", "procrustes", "ridge", "kernel")
UNTOUCHED = ("rescoring 50", "lazy 50", "lazy 100")
CORPORA = ("scifact", "cranfield", "cisi")


def cases(options: Options) -> list[dict[str, Any]]:
    """Return one case per corpus and ordered pair of encoders."""
    return [
        {"corpus": corpus, "source": source, "target": target}
        for corpus in options["corpora"]
        for source, target in options["pairs"]
    ]


@dataclass(frozen=True)
class EveryPair(Quantity):
    """The least (or greatest) of a quantity over the pairs of encoders that it was measured for.

    A seed in which one of these pairs has no number has none: the least of the others is not the least.
    """

    quantity: Quantity
    greatest: bool = False

    def per_seed(self, measurements: Sequence[Measurement], seeds: Sequence[int]) -> list[float | None]:
        """Return the least over pairs, seed by seed."""
        pairs: dict[Any, list[Measurement]] = {}
        for own in measurements:
            if {"source", "target"} <= set(own.factors):
                pairs.setdefault((own.factors["source"], own.factors["target"]), []).append(own)
        columns = [
            self.quantity.per_seed(own, seeds) for own in pairs.values() if _tried(self.quantity, own, seeds)
        ]
        extreme = max if self.greatest else min
        return [
            None if None in values else extreme(value for value in values if value is not None)
            for values in zip(*columns, strict=True)
        ] or [None] * len(seeds)

    def within(self, factors: Any) -> Quantity:
        """Return the same over the pairs under `factors`."""
        return EveryPair(self.quantity.within(factors), self.greatest)

    def __str__(self) -> str:
        return f"{'highest' if self.greatest else 'lowest'} over pairs of {self.quantity}"


def _tried(quantity: Quantity, measurements: Sequence[Measurement], seeds: Sequence[int]) -> bool:
    """Return whether anything of the quantity was measured, also where no number came of it.

    Some rows have fewer pairs than the suite.
    """
    if isinstance(quantity, Combined):
        return any(_tried(part, measurements, seeds) for part in quantity.parts)
    noted = [Measurement(own.factors, dict.fromkeys(own.metrics, 0.0), own.seed) for own in measurements]
    return isinstance(quantity, MetricMean) and quantity.per_seed(noted, seeds) != [None] * len(seeds)


def _recall(method: str, anchors: int = 2000) -> Any:
    return cell("recall", corpus="glosses", method=method, anchors=anchors)


def _kept(corpus: str, method: str, **where: Any) -> Any:
    return cell("nDCG kept", corpus=corpus, method=method, **where)


def _ours(text: str, quantity: Quantity, **bounds: float) -> Claim:
    return Claim(text=text, quantity=quantity, source="ours", **bounds)


_CLAIMS = (
    _ours(
        "Ridge beats the recipe of latentis 0.0.8 by 0.02 of recall at 2,000 anchors, on average.",
        _recall("ridge") - _recall("latentis recipe"),
        at_least=0.02,
    ),
    _ours(
        "Kernel ridge beats ridge by 0.02 of recall at 2,000 anchors, on average.",
        _recall("kernel") - _recall("ridge"),
        at_least=0.02,
    ),
    _ours(
        "Kernel ridge beats ridge by 0.01 of recall at 2,000 anchors for each pair.",
        EveryPair(_recall("kernel") - _recall("ridge")),
        at_least=0.01,
    ),
    _ours(
        "Kernel ridge beats ridge by 0.03 of recall at 5,000 anchors, on average.",
        _recall("kernel", 5000) - _recall("ridge", 5000),
        at_least=0.03,
    ),
    _ours(
        "The Tikhonov form of IRP beats the paper's pruning by 0.02 of recall at 2,000 anchors.",
        _recall("IRP (Tikhonov)") - _recall("IRP (paper)"),
        at_least=0.02,
    ),
    _ours(
        "Lazy migration with 100 candidates finds 0.85 of the native top 10 for each pair.",
        EveryPair(_recall("lazy 100")),
        at_least=0.85,
    ),
    _ours(
        "Rescoring 50 candidates by translated rows is within 0.005 of translating all of them.",
        _recall("ridge") - _recall("rescoring 50"),
        at_most=0.005,
    ),
    _ours(
        "Restoring variance raises the recall of an index of which half the rows are native.",
        cell("recall", corpus="glosses", method="half native, variance restored")
        - cell("recall", corpus="glosses", method="half native"),
        at_least=0.0,
    ),
    _ours(
        "The leave-one-out cosine is within 0.01 of the held-out one, for each pair.",
        EveryPair(cell("cosine gap", corpus="glosses", anchors=2000), greatest=True),
        at_most=0.01,
    ),
    _ours(
        "The forecast recall is within 0.025 of the held-out one, for each pair.",
        EveryPair(cell("recall gap", corpus="glosses", anchors=2000), greatest=True),
        at_most=0.025,
    ),
    _ours(
        "With 5 % of the pairs wrong, 4 to 6 % are flagged.",
        cell("flagged at 5 %", corpus="glosses"),
        at_least=0.04,
        at_most=0.06,
    ),
    _ours(
        "With no wrong pair, fewer than 0.5 % are flagged.",
        cell("flagged clean", corpus="glosses"),
        at_most=0.005,
    ),
    _ours(
        "A constant target feature moves recall by less than 0.002.",
        cell("constant feature", corpus="glosses"),
        at_most=0.002,
    ),
    *(
        claim
        for corpus, label, size in (("scifact", "SciFact", 2000), ("cranfield", "Cranfield", 500))
        for claim in (
            _ours(
                f"Lazy migration with 100 candidates keeps 0.97 of nDCG on {label} ({size:,} anchors).",
                _kept(corpus, "lazy 100", anchors=size),
                at_least=0.97,
            ),
            _ours(
                f"Fused scores are not below the old model alone by more than 0.01 of nDCG on {label}.",
                _kept(corpus, "kernel fused with old", anchors=size) - _kept(corpus, "old model alone"),
                at_least=-0.01,
            ),
            _ours(
                f"Translated rows alone rank documents worse than the old model left alone ({label}).",
                _kept(corpus, "old model alone") - _kept(corpus, "kernel", anchors=size),
                at_least=0.0,
            ),
        )
    ),
)

_ALONE = Condition("old model alone", {"method": "old model alone"})
_GLOSSES_BY_SIZE = PaperTable(
    title="Recall@10 of the native top 10 on glosses, mean of all pairs",
    rows=(
        *(Condition(method, {"method": method}) for method in (*MAPS, *UNTOUCHED)),
        *(
            Condition(f"ridge, {way} anchors", {"method": f"ridge, {way} anchors"})
            for way in ("farthest", "kmeans")
        ),
    ),
    columns=(
        *(
            Heading(f"{size:,} anchors", cell("recall", corpus="glosses", anchors=size))
            for size in (500, 2000, 5000)
        ),
        Heading("lowest pair at 2,000", EveryPair(cell("recall", corpus="glosses", anchors=2000))),
    ),
)
_GLOSSES_WHOLE = PaperTable(
    title="Without anchors, and half moved: recall@10 on glosses",
    rows=(
        _ALONE,
        Condition("half the rows native, others by the kernel", {"method": "half native"}),
        Condition("the same with variance restored", {"method": "half native, variance restored"}),
    ),
    columns=(
        Heading("mean of all pairs", cell("recall", corpus="glosses")),
        Heading("lowest pair", EveryPair(cell("recall", corpus="glosses"))),
    ),
)
_GLOSSES_BY_PAIR = PaperTable(
    title="Recall@10 on glosses with 2,000 anchors, pair by pair",
    rows=tuple(
        Condition(f"{source} → {target}", {"source": source, "target": target}) for source, target in PAIRS
    ),
    columns=(
        Heading("old model alone", cell("recall", corpus="glosses", method="old model alone")),
        *(Heading(method, _recall(method)) for method in (*MAPS, *UNTOUCHED)),
    ),
)
_JUDGED = (
    "old model alone",
    *(method for method in MAPS if method != "IRP (paper)"),
    "ridge, variance restored",
    "kernel, variance restored",
    "kernel fused with old",
    "anchors native",
    "anchors native, variance restored",
    *UNTOUCHED,
    "old query, lazy 50",
    "old query, lazy 100",
)


def _judged(corpus: str, label: str, sizes: tuple[int, ...]) -> PaperTable:
    """Return what is kept on one collection; rows without anchors have the same figure in every column."""
    rows = [
        Condition(
            f"{method}, {size:,} anchors" if _anchored(method) else method,
            {"method": method} | ({"anchors": size} if _anchored(method) else {}),
        )
        for method in _JUDGED
        for size in (sizes if _anchored(method) else sizes[:1])
    ]
    return PaperTable(
        title=f"{label}: nDCG@10 kept, mean of all pairs",
        rows=tuple(rows),
        columns=(
            Heading("nDCG@10 kept", cell("nDCG kept", corpus=corpus)),
            Heading("lowest pair", EveryPair(cell("nDCG kept", corpus=corpus))),
            Heading("recall@10 of the native top 10", cell("recall", corpus=corpus)),
        ),
    )


def _anchored(method: str) -> bool:
    return not method.startswith("old ")


suite = Suite(
    title="Changing the embedding model of an index",
    summary=(
        "Vectors of an old encoder are translated into a new one's space from texts embedded by both, or "
        "searched as they are and rescored. On WordNet glosses: overlap with the new model's own top 10. On "
        "retrieval sets: nDCG@10 as a share of embedding everything again, with anchors from the corpus only "
        "and every row scored by a map that did not see it; documents are cut after 64 words. Old model "
        "alone: old query on the old index. The row of latentis is its recipe written out anew, which gives "
        "the package's own vectors up to rounding (make peers)."
    ),
    paper=PAPER.at("the task is ours"),
    claims=_CLAIMS,
    scales={
        "quick": Scale(
            seeds=3,
            minutes=3.5,
            options={
                "corpora": ["glosses", "cranfield"],
                "pairs": [list(pair) for pair in QUICK_PAIRS],
                "anchors": [500, 2000],
                "forecast": 2000,
                "gallery": 4000,
                "queries": 800,
                "ways": [list(QUICK_PAIRS[0])],
                "retrieval anchors": {"cranfield": [500]},
                "words": 64,
            },
        ),
        "full": Scale(
            seeds=3,
            minutes=100,
            options={
                "corpora": ["glosses", *CORPORA],
                "pairs": [list(pair) for pair in PAIRS],
                "anchors": [500, 2000, 5000],
                "forecast": 2000,
                "gallery": 4000,
                "queries": 800,
                "ways": [list(pair) for pair in QUICK_PAIRS],
                "retrieval anchors": {"scifact": [500, 2000], "cranfield": [500, 1000], "cisi": [500, 1000]},
                "words": 64,
            },
            needs=(
                *packaged_data("ir_scifact-corpus", "ir_cisi-corpus"),
                *packaged_models("granite-small", "mpnet-base"),
            ),
        ),
    },
    cases=cases,
    run=MeasuredBy("transship_suites.irp.migration:measured"),
    tables=(
        _GLOSSES_BY_SIZE,
        _GLOSSES_WHOLE,
        _GLOSSES_BY_PAIR,
        _judged("cranfield", "Cranfield", (500, 1000)),
        _judged("scifact", "SciFact", (500, 2000)),
        _judged("cisi", "CISI", (500, 1000)),
    ),
    needs=(
        *packaged_data("wordnet_glosses", "ir_cranfield-corpus"),
        *packaged_models("minilm-l3", "minilm-l6", "bge-small"),
    ),
)
