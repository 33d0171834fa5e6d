"""OTMF on a real sentence encoder: six text fine-tunes with heads of their own, merged one after another.

The sister of `otmf_continual`: the same rows and controls on MiniLM, whose upper blocks are fine-tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from transship_suites.materials.text_tasks import MODEL, NEEDS, TASKS
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
    yield from TextBench(context).measured(case)


def figures(result: SuiteResult) -> list[Any]:
    """Return medians over orders and seeds, accuracy matrices and clouds of features."""
    from transship_suites.otmf.figures import merging_figures

    return merging_figures(result, CLAIMS)


class TextBench(Bench):
    """Six text tasks on the upper blocks of MiniLM; what enters those blocks is computed once."""

    def load_tasks(self) -> list[Task]:
        """Return the tasks in their first order, as states that enter the blocks that are tuned."""
        return [self._task(name) for name in self.options["tasks"]]

    def load_base(self) -> nn.Module:
        """Return the upper blocks as they were published."""
        from transship_suites.materials.bodies import upper_blocks

        return upper_blocks(_encoder(), self.options["blocks"])

    def tuned(self, tasks: Sequence[Task]) -> tuple[nn.Module, list[nn.Linear]]:
        """Return the base trained on `tasks`, made once."""
        from transship_suites.materials import bodies, training

        names = [task.name for task in tasks]
        settings = {
            "steps": self.options["tune"],
            "rate": self.options["rate"],
            "seed": self.context.seed("tune", *names) % 2**31,
            "batch": 16,
        }
        parts = {**settings, "tasks": names, "rows": [len(task.train) for task in tasks], **self._lower()}
        arrays = self.context.cached(
            "merge-text-tuned",
            parts,
            lambda: training.to_arrays(*training.tune(self.base, tasks, self.read, **settings)),
            code=(training.tune, training.train, training.probe, bodies.Upper, bodies.lower_states),
        )
        return training.from_arrays(arrays, self.base)

    def _lower(self) -> dict[str, Any]:
        return {"model": MODEL, "blocks": self.options["blocks"], "tokens": self.options["tokens"]}

    def _task(self, name: str) -> Task:
        import torch

        from transship_suites.materials.bodies import lower_states
        from transship_suites.materials.text_tasks import load_rows
        from transship_suites.materials.training import Rows, Task

        texts, digest = load_rows(name, self.options["rows"], self.options["test"])
        blocks, tokens = self.options["blocks"], self.options["tokens"]

        def make() -> dict[str, Any]:
            return {
                part: lower_states(_encoder(), blocks, rows, tokens=tokens).numpy()
                for part, rows in (("train", texts.train), ("test", texts.test))
            }

        arrays = self.context.cached(
            "merge-text-states", {"texts": digest, **self._lower()}, make, code=(lower_states,)
        )
        train, test = (
            Rows(torch.from_numpy(arrays[part]), torch.as_tensor(labels).long())
            for part, labels in (("train", texts.train_labels), ("test", texts.test_labels))
        )
        return Task(name, train, test, len(texts.names))


@cache
def _encoder() -> Any:
    from transship_suites.materials.encoders import load_encoder

    return load_encoder(MODEL)


_SETTING = (
    "the paper merges CLIP ViT-B/32 fine-tuned on eight image sets; here the upper two blocks of six of "
    "MiniLM-L6, fine-tuned on six sets of short texts. Its own text table (Flan-T5 on GLUE) has no heads"
)

suite = Suite(
    title="OTMF and its rivals on MiniLM, one model after another",
    summary=(
        "The upper two blocks of MiniLM-L6 are fine-tuned on six text tasks with heads of their own "
        f"({', '.join(TASKS)}), texts cut to 16 tokens: a linear probe, then blocks and head. The fine-tunes "
        "are merged one after another in three orders. Heads see a quarter of each task's training inputs: "
        "with labels where they are tuned, without where they are carried from the fine-tune's logits. ACC "
        "is the mean test accuracy after the last model, BWT leaves the last task out."
    ),
    paper=Paper(
        "Merging without Forgetting: Continual Fusion of Task-Specific Models via Optimal Transport",
        authors="Pan, Chen, Li, Zhang, Cui, Jin, Tao, Yang, Ye and Zhang",
        where="Tables 1, 2, 4 and 5, Figure 5",
    ),
    claims=CLAIMS,
    scales={
        "quick": Scale(
            seeds=2,
            minutes=2,
            options={
                "tasks": ["trec", "spam", "news"],
                "rows": 400,
                "test": 150,
                "blocks": 1,
                "tokens": 12,
                "tune": 40,
                "rate": 5e-4,
                "orders": 1,
                "methods": dict.fromkeys(("average", "OPCM", OTMF, MIX), 1),
                "joint": ["joint TIES"],
                "alphas": [],
            },
        ),
        "full": Scale(
            seeds=3,
            minutes=95,
            options={
                "tasks": list(TASKS),
                "rows": 2000,
                "test": 400,
                "blocks": 2,
                "tokens": 16,
                "tune": 250,
                "rate": 5e-4,
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
