"""OTMF on small vision transformers: eight fine-tunes with heads of their own, merged one after another.

Tables 1, 2 and 5 and Figure 5 of the paper, with controls that it does not show: every kind of head on every
merged body and on the unmerged base.
"""

from __future__ import annotations

from transship_suites.materials.origins import PICTURE_TASKS, packaged_data
from transship_suites.otmf.declared import small_suite
from transship_suites.runner import MeasuredBy

TASKS = tuple(PICTURE_TASKS)


_SETTING = (
    "the paper merges CLIP ViT-B/32 fine-tuned on eight natural-image sets with text-made heads; here a ViT "
    "of width 64, pre-trained on half of the classes of MNIST and Fashion-MNIST, with heads trained per task"
)

suite = small_suite(
    _SETTING,
    "Tables 1, 2 and 5, Figure 5",
    title="OTMF and its rivals on small vision transformers, one model after another",
    summary=(
        "A vision transformer (width 64, four blocks, 28×28 pixels in 7×7 patches) is pre-trained on the "
        "classes 0–4 of MNIST and Fashion-MNIST and fine-tuned on eight tasks with heads of their own "
        f"({', '.join(TASKS)}): a linear probe, then everything. The fine-tunes are merged one after another "
        "in three orders. Heads see a quarter of each task's training inputs: with labels where they are "
        "tuned, without where they are carried from the fine-tune's logits. ACC is the mean test accuracy "
        "after the last model, BWT leaves the last task out."
    ),
    quick={"tasks": list(TASKS[:4]), "rows": 1000, "test": 400, "pretrain": 300, "tune": 80, "rate": 5e-4},
    full={"tasks": list(TASKS), "rows": 3000, "test": 500, "pretrain": 1000, "tune": 200, "rate": 4e-4},
    minutes=40,
    run=MeasuredBy("transship_suites.otmf.small:PictureMerging"),
    needs=packaged_data("mnist", "fashion_mnist", "gtsrb_32", "usps_test"),
)
