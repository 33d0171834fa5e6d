"""THESEUS on small vision transformers: a fine-tune moved to a wider, narrower, equal, deeper or
finer-grained one.

Tables 1 and 3–8 and Figure 2 of the paper, at a size that two cores train in minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transship.suites.runner import (
    Case,
    Claim,
    Column,
    Context,
    Curve,
    Measurement,
    Options,
    Paper,
    Row,
    Scale,
    Suite,
    Table,
    cell,
    highest,
    product,
)
from transship.suites.small_vision.bench import BASELINES, Bench
from transship.suites.small_vision.pictures import NEEDS
from transship.suites.small_vision.shifts import SHIFTS


def cases(options: Options) -> list[dict[str, Any]]:
    """Return every part with its tasks."""
    return [one for part, tasks in options["parts"].items() for one in product(part=[part], task=tasks)]


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one task between one pair of networks."""
    bench = Bench(case, context)
    yield from bench.bounds()
    rows = {
        "wider": bench.wider,
        "narrower": bench.narrower,
        "budget": bench.budget,
        "same": bench.same,
        "deeper": bench.deeper,
        "finer": bench.finer,
    }
    yield from rows[case["part"]]()


def _share(method: str, part: str = "wider", **where: Any) -> Any:
    return cell("share", method=method, part=part, batches=10, **where)


_BEST = highest(
    _share("theseus + carry"),
    _share("gradient + carry"),
    _share("4 path steps + carry"),
    _share("carry alone"),
)
_BEST_NARROWER = highest(
    *(_share(name, "narrower") for name in ("theseus + carry", "gradient + carry", "carry alone"))
)
_COLUMNS = (
    Column("accuracy", "accuracy", percent=True, digits=1),
    Column("share of the source's gain", "share", percent=True, digits=1),
    Column("clean accuracy", "clean", percent=True, digits=1),
    Column("strength", "strength", digits=2),
)
_BOUND_ROWS = ("target zero-shot", "source fine-tuned", "target fine-tuned")
_SETTING = (
    "the paper moves fine-tunes between CLIP ViT-B/16 and ViT-B/16+ on eight image sets; we move them "
    "between ViTs of widths 64 and 96 pre-trained on MNIST and Fashion-MNIST, on eight shifts of these "
    "inputs. Shares of the gain are of the source's fine-tune over the untouched target"
)


def _table(title: str, part: str, methods: tuple[str, ...], **extra: Any) -> Table:
    rows = [Row(name, {"method": name, "part": part}) for name in _BOUND_ROWS]
    rows += [Row(name, {"method": name, "part": part, "batches": 10}) for name in methods]
    return Table(title=title, rows=tuple(rows), columns=_COLUMNS, **extra)


suite = Suite(
    title="THESEUS between small vision transformers of different widths",
    summary=(
        "Two vision transformers (widths 64 and 96, four blocks, 28×28 pixels in 7×7 patches) are "
        "pre-trained apart on MNIST and Fashion-MNIST, one is fine-tuned on a shifted task with its head "
        "frozen, and the update is moved to the other without training. Strengths are chosen on 250 labelled "
        "validation images of the training data; accuracy is of 1,000 test images."
    ),
    paper=Paper(
        "Transporting Task Vectors across Different Architectures without Training",
        authors="Rinaldi, Panariello, Salici, Porrello and Calderara",
        where="Tables 1 and 3–8, Figure 2",
    ),
    claims=(
        Claim(
            text="THESEUS with ten batches recovers at least 22 % of the source's gain in a wider model.",
            quantity=_share("theseus"),
            at_least=0.22,
            source="Table 1 (28 %)",
        ),
        Claim(
            text="That is at least three times what pseudo-inverses, padding and random updates recover.",
            quantity=_share("theseus") - 3 * highest(*(_share(name) for name in BASELINES)),
            at_least=0.0,
            source="Table 1",
        ),
        Claim(
            text="Output maps from gradients recover at least 30 %.",
            quantity=highest(_share("gradient"), _share("gradient blend")),
            at_least=0.30,
            source="ours",
        ),
        Claim(
            text="In four path steps they recover at least 42 %.",
            quantity=_share("gradient, 4 path steps"),
            at_least=0.42,
            source="ours",
        ),
        Claim(
            text="A random update through the same maps recovers under 3 %.",
            quantity=_share("random-aligned"),
            at_most=0.03,
            source="Table 1 (1 %)",
        ),
        Claim(
            text="With a carried head on 1,000 unlabelled inputs the best transport recovers at least 80 %.",
            quantity=_BEST,
            at_least=0.80,
            source="ours",
        ),
        Claim(
            text="From wide to narrow the best transport with a carried head recovers at least 68 %.",
            quantity=_BEST_NARROWER,
            at_least=0.68,
            source="ours",
        ),
    ),
    scales={
        "quick": Scale(
            seeds=2,
            minutes=10,
            options={
                "pretrain": 1500,
                "tune": 250,
                "parts": {"wider": ["rotation", "noise"], "narrower": ["rotation", "noise"]},
                "batches": [],
                "shots": [],
                "warm": [],
            },
        ),
        "full": Scale(
            seeds=3,
            minutes=70,
            options={
                "pretrain": 1500,
                "tune": 250,
                # claims rest on eight tasks; the other tables show three
                "parts": {
                    "wider": list(SHIFTS),
                    "narrower": list(SHIFTS),
                    "budget": ["rotation", "noise", "shear"],
                    "same": ["rotation", "noise", "shear"],
                    "deeper": ["rotation", "noise", "shear"],
                    "finer": ["rotation", "noise", "shear"],
                },
                "batches": [1, 2, 5, 10, 20],
                "shots": [1, 2, 5, 10, 20],
                "warm": [0, 10, 25, 50, 100],
            },
        ),
    },
    cases=cases,
    run=run,
    tables=(
        _table(
            "Narrow to wide, eight tasks",
            "wider",
            (
                "theseus",
                *BASELINES,
                "gradient",
                "gradient blend",
                "gradient, 4 path steps",
                "carry alone",
                "theseus + carry",
                "gradient + carry",
                "4 path steps + carry",
            ),
            paper={
                ("theseus", "share of the source's gain"): 28.0,
                ("random-aligned", "share of the source's gain"): 0.6,
                ("pad", "share of the source's gain"): -0.8,
            },
            paper_source="Table 1, mean gain over that of θ_A fine-tune; random at B = 5",
            setting=_SETTING,
        ),
        Table(
            title="Narrow to wide, three tasks: choices and controls",
            rows=tuple(
                Row(name, {"method": name, "part": "budget"})
                for name in (
                    "target zero-shot",
                    "source fine-tuned",
                    "random",
                    "pinv-tikhonov per side",
                    "theseus, strength without labels",
                    "gradient blend, strength without labels",
                    "theseus, roles of the paper",
                    "gradient + carry",
                    "gradient + carry, kept",
                    "40 training steps on pseudo-labels",
                    "160 training steps on pseudo-labels",
                    "ridge head on 1000 true labels",
                )
            ),
            columns=_COLUMNS,
        ),
        _table(
            "Wide to narrow",
            "narrower",
            (
                "theseus",
                *BASELINES,
                "gradient blend",
                "carry alone",
                "theseus + carry",
                "gradient + carry",
            ),
        ),
        _table(
            "One shape, other pre-training",
            "same",
            (
                "identity",
                "transfusion, shared residual",
                "transfusion, segments",
                "gradfix",
                "gradfix of a random update",
                "gradfix on theseus",
                "theseus",
                "gradient blend",
            ),
        ),
        Table(
            title="Four blocks to six",
            rows=tuple(
                Row(f"{method}, {depth}", {"method": method, "part": "deeper", "depth": depth})
                for method in ("theseus", "gradient blend")
                for depth in ("interpolate", "nearest", "skip")
            ),
            columns=_COLUMNS,
        ),
        Table(
            title="Token alignment, 7×7 to 4×4 patches",
            rows=tuple(
                Row(
                    f"{align}, {batches} batches",
                    {"method": "theseus", "part": "finer", "align": align, "batches": batches},
                )
                for batches in (1, 5)
                for align in ("mean", "linear", "grid")
            ),
            columns=_COLUMNS,
        ),
        Table(
            title="Examples per class, three tasks",
            rows=tuple(
                Row(f"theseus, K = {shots}", {"method": "theseus", "part": "budget", "shots": shots})
                for shots in (1, 2, 5, 10, 20)
            ),
            columns=_COLUMNS,
        ),
    ),
    curves=(
        Curve(
            title="Share of the gain by calibration batches, three tasks",
            x="batches",
            quantity=cell("share", part="budget"),
            lines=(Row("theseus", {"method": "theseus"}), Row("pinv", {"method": "pinv"})),
            x_title="batches of 32 inputs",
            y_title="share of the source's gain",
            log_x=True,
        ),
        Curve(
            title="Warm start, three tasks",
            x="steps",
            quantity=cell("accuracy", part="budget", method="warm start"),
            lines=(
                Row("from the target", {"start": "from the target"}),
                Row("from the transported start", {"start": "from the transported start"}),
            ),
            x_title="fine-tuning steps",
            y_title="accuracy",
        ),
    ),
    needs=NEEDS,
)
