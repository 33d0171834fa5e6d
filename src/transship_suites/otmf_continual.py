"""OTMF on small vision transformers: eight fine-tunes with heads of their own, merged one after another.

Tables 1, 2 and 5 and Figure 5 of the paper, with controls that it does not show: every kind of head on every
merged body and on the unmerged base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transship_suites.materials.picture_tasks import NEEDS, TASKS
from transship_suites.otmf.declared import alpha_curve, cases, ours, sweep_claim, tables, theirs
from transship_suites.otmf.names import ALPHAS, JOINT, MIX, ORDERS, OTMF
from transship_suites.otmf.small import Bench
from transship_suites.runner import Case, Context, Measurement, Paper, Scale, Suite, SuiteResult

if TYPE_CHECKING:
    from torch import nn

    from transship_suites.materials.training import Task

CLAIMS = (*ours(), *theirs(), sweep_claim())


def run(case: Case, context: Context) -> Iterator[Measurement]:
    """Measure one case."""
    yield from PictureBench(context).measured(case)


class PictureBench(Bench):
    """Eight picture tasks on a vision transformer that knows half of the digits and half of the clothes."""

    def load_tasks(self) -> list[Task]:
        """Return the tasks in their first order."""
        from transship_suites.materials.picture_tasks import load_task

        return [load_task(name, self.options["rows"], self.options["test"]) for name in self.options["tasks"]]

    def load_base(self) -> nn.Module:
        """Return the transformer of this seed after pre-training."""
        from transship_suites.materials import bodies, training
        from transship_suites.materials import small_networks as networks
        from transship_suites.materials.picture_tasks import pretraining_pictures
        from transship_suites.materials.shifts import augment

        settings = {"steps": self.options["pretrain"], "seed": self.context.seed("base") % 2**31}
        arrays = self.context.cached(
            "merge-picture-base",
            {**settings, "shape": str(bodies.SHAPE)},
            lambda: training.to_arrays(bodies.pretrained_eye(pretraining_pictures(), **settings), ()),
            code=(
                bodies.Eye,
                bodies.pretrained_eye,
                training.train,
                pretraining_pictures,
                augment,
                networks.Network,
            ),
        )
        return training.from_arrays(arrays, bodies.Eye())[0]

    def tuned(self, tasks: Sequence[Task]) -> tuple[nn.Module, list[nn.Linear]]:
        """Return the base trained on `tasks`, made once."""
        from transship_suites.materials import bodies, training
        from transship_suites.materials import picture_tasks as pictures

        settings = {
            "steps": self.options["tune"],
            "rate": self.options["rate"],
            "seed": self.context.seed("tune", *(task.name for task in tasks)) % 2**31,
            "batch": 64,
        }
        parts = {
            **settings,
            "tasks": [task.name for task in tasks],
            "rows": [len(task.train) for task in tasks],
            "base": [self.context.seed("base"), self.options["pretrain"]],
        }
        arrays = self.context.cached(
            "merge-picture-tuned",
            parts,
            lambda: training.to_arrays(*training.tune(self.base, tasks, self.read, **settings)),
            code=(
                training.tune,
                training.train,
                training.probe,
                bodies.Eye,
                bodies.pretrained_eye,
                pictures._made,
                pictures._stored,
            ),
        )
        return training.from_arrays(arrays, self.base)


def figures(result: SuiteResult) -> list[Any]:
    """Return medians over orders and seeds, accuracy matrices and clouds of features."""
    from transship_suites.otmf.figures import merging_figures

    return merging_figures(result, CLAIMS)


_SETTING = (
    "the paper merges CLIP ViT-B/32 fine-tuned on eight natural-image sets with text-made heads; here a ViT "
    "of width 64, pre-trained on half of the classes of MNIST and Fashion-MNIST, with heads trained per task"
)

suite = Suite(
    title="OTMF and its rivals on small vision transformers, one model after another",
    summary=(
        "A vision transformer (width 64, four blocks, 28×28 pixels in 7×7 patches) is pre-trained on the "
        "classes 0–4 of MNIST and Fashion-MNIST and fine-tuned on eight tasks with heads of their own "
        f"({', '.join(TASKS)}): a linear probe, then everything. The fine-tunes are merged one after another "
        "in three orders. Heads see a quarter of each task's training inputs: with labels where they are "
        "tuned, without where they are carried from the fine-tune's logits. ACC is the mean test accuracy "
        "after the last model, BWT leaves the last task out."
    ),
    paper=Paper(
        "Merging without Forgetting: Continual Fusion of Task-Specific Models via Optimal Transport",
        authors="Pan, Chen, Li, Zhang, Cui, Jin, Tao, Yang, Ye and Zhang",
        where="Tables 1, 2 and 5, Figure 5",
    ),
    claims=CLAIMS,
    scales={
        "quick": Scale(
            seeds=2,
            minutes=2,
            options={
                "tasks": list(TASKS[:4]),
                "rows": 1000,
                "test": 400,
                "pretrain": 300,
                "tune": 80,
                "rate": 5e-4,
                "orders": 1,
                "methods": dict.fromkeys(("average", "OPCM", OTMF, MIX), 1),
                "joint": ["joint TIES"],
                "alphas": [],
            },
        ),
        "full": Scale(
            seeds=3,
            minutes=30,
            options={
                "tasks": list(TASKS),
                "rows": 3000,
                "test": 500,
                "pretrain": 1000,
                "tune": 200,
                "rate": 4e-4,
                "orders": 3,
                "methods": dict(ORDERS),
                "joint": list(JOINT),
                "alphas": list(ALPHAS),
            },
        ),
    },
    cases=cases,
    run=run,
    tables=tables(setting=_SETTING),
    curves=(alpha_curve(),),
    figures=figures,
    needs=NEEDS,
)
