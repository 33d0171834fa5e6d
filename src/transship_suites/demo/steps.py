"""The four verbs on what the demo trained: what went in, what came out, what it is held against; the page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from transship import report
from transship.activations import features
from transship.data import wrap
from transship.errors import TransshipWarning
from transship.verbs.adapt import Recraft
from transship.verbs.adapt.raw.fit import raw_baselines
from transship.verbs.merge.fusion import Fusion
from transship.verbs.translate import Ridge, Stitch
from transship.verbs.translate.maps.vectors import neighbours, overlap, unit_rows
from transship.verbs.transport import transport
from transship_suites.demo import models
from transship_suites.demo.models import Digits, Images, leave_behind, turned


@dataclass(frozen=True)
class Size:
    """How much the demo trains."""

    pretrain: int
    tune: int
    adapt: int
    folder: str = "models"


HEADING = f"{'verb':9}  {'figure':27}  {'with it':>7}  {'best without it':36}  to come near"
NARROW, WIDE = 48, 64
PAIRS, ROWS, NEAREST = 300, 1000, 10
FULL, FAST = Size(400, 200, 40), Size(240, 120, 4, "models-fast")


@dataclass(frozen=True)
class VerbResult:
    """One verb's result.

    Attributes:
        verb: its name.
        story: what was done, in a sentence or two.
        unit: what the figures are.
        figures: row → figure: baselines, what the verb made, references.
        ours: the row that the verb made.
        references: rows that have more than the verb is given: what it is for is to come near them.
        extra: blocks for the page.
    """

    verb: str
    story: str
    unit: str
    figures: Mapping[str, float]
    ours: str
    references: tuple[str, ...] = ()
    extra: tuple[Any, ...] = field(default=())

    @property
    def baseline(self) -> str:
        """The row that the verb is held against: the best that one would have without it."""
        others = {
            row: value for row, value in self.figures.items() if row not in (self.ours, *self.references)
        }
        return max(others, key=others.__getitem__)

    def line(self) -> str:
        """Return the result, the best baseline and the reference in one line, under `HEADING`."""
        shown = [self.figures[self.ours], self.figures[self.baseline]]
        ours, baseline = (f"{100 * share:5.1f} %" for share in shown)
        line = f"{self.verb:9}  {self.unit:27}  {ours}  {baseline} {self.baseline:28}"
        best = "".join(f"{100 * self.figures[name]:5.1f} % {name}" for name in self.references[:1])
        return f"{line}  {best}".rstrip()


class Demo:
    """Two base models of different width in a folder, and the verbs on them; what is there is used again."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder, self.size = folder / size.folder, size
        self.train, self.test = models.load_digits("train"), models.load_digits("test")
        self.narrow = self._base("narrow", NARROW)
        self.wide = self._base("wide", WIDE)
        self.waves = waves = signals(240, seed=0), signals(400, seed=1)
        self.data = leave_behind(folder / "data", {"digits": (self.train, self.test), **self._tasks()}, waves)

    def bases(self) -> dict[str, float]:
        """Return the test accuracy of the two base models."""
        return {
            name: models.accuracy(models.load(folder), self.test)
            for name, folder in (("narrow", self.narrow), ("wide", self.wide))
        }

    def transport(self) -> VerbResult:
        """Move a fine-tune for turned digits from the narrow model to the wide one."""
        task, test = self.train.changed(models.turned), self.test.changed(models.turned)
        tuned = self._tuned("turned", task, frozen_head=True)
        source, target = models.load(self.narrow), models.load(self.wide)
        data = wrap(task.images[:640], kind="array", name="turned digits")
        moved = transport(source, models.load(tuned), target, data=data, batches=10)
        # what a new head alone would do: without this row the figure of a carried head says little
        head = transport(
            source, models.load(tuned), target, data=data, batches=10, method="carry", strength=0
        )
        figures = {
            "untouched wide model": models.accuracy(target, test),
            "carried head alone": models.accuracy(head.model(), test),
            "transported": models.accuracy(moved.model(), test),
            "fine-tuned source": models.accuracy(models.load(tuned), test),
        }
        chosen = f"`{moved.method}` at strength {moved.strength:g}"
        return VerbResult(
            "transport",
            "The narrow model was fine-tuned on digits that are rotated by 90°. transport moved what it "
            f"learned to the wide model, with {len(data)} unlabelled pictures and no labels. It chose "
            f"{chosen}. A carried head is a new head that imitates the fine-tuned source. The second row has "
            "such a head and no moved weights.",
            "accuracy on rotated digits",
            figures,
            "transported",
            ("fine-tuned source",),
        )

    def translate(self) -> VerbResult:
        """Translate one encoder's vectors to another: real ones where their packages are installed."""
        folders = models.encoders()
        return (
            _translate_texts(*folders) if len(folders) == len(models.ENCODERS) else self._translate_digits()
        )

    def _translate_digits(self) -> VerbResult:
        """Translate the narrow model's embeddings into the wide model's space, and stitch a head."""
        old, new = models.load(self.narrow), models.load(self.wide)
        sample = Digits(self.train.images[:PAIRS], self.train.labels[:PAIRS])
        seen, wanted = models.embed(old, sample), models.embed(new, sample)
        map_, head = Ridge().fit(seen, wanted), models.head_of(new)
        vectors, native = models.embed(old, self.test), models.embed(new, self.test)
        padded = np.pad(vectors, ((0, 0), (0, WIDE - NARROW)))
        figures = {
            "head on padded vectors": Stitch(None, None, head).score(padded, self.test.labels),
            "new head on the same pairs": _new_head(seen, head(wanted)).score(vectors, self.test.labels),
            "narrow model left alone": models.accuracy(old, self.test),
            "head on translated vectors": Stitch(None, map_, head).score(vectors, self.test.labels),
            "head on its own encoder": Stitch(None, None, head).score(native, self.test.labels),
        }
        twins = _twins(np.asarray(map_.transform(vectors)), native)
        return VerbResult(
            "translate",
            f"A ridge map from the narrow model's embeddings to the wide model's was fitted on {PAIRS} "
            "pairs. Then the wide model's own head classified translated embeddings, without training. "
            "Two rows compare: a new head on the narrow model's embeddings, which imitates the wide model's "
            "head on the same pairs, and the narrow model with its own head. "
            f"For {twins:.0%} of {len(self.test)} test digits, the wide model's own embedding is among the "
            "ten nearest of the translated one.",
            "accuracy on digits",
            figures,
            "head on translated vectors",
            ("head on its own encoder",),
        )

    def merge(self) -> VerbResult:
        """Merge four fine-tunes of the narrow model, which arrive one after another."""
        tasks, kept = self._tasks(), 300
        rows = ("base, carried heads", "merged, carried heads")
        averaged = "averaged, own heads"
        fusions = {
            averaged: Fusion(self.narrow, "average", heads="own", keep_inputs=kept),
            rows[0]: Fusion(self.narrow, "base", heads="carried", keep_inputs=kept),
            rows[1]: Fusion(self.narrow, heads="carried", keep_inputs=kept),
        }
        alone = []
        for name, (train, test) in tasks.items():
            tuned = self._tuned(f"task-{name}", train, frozen_head=False)
            alone.append(models.accuracy(models.load(tuned), test))
            data = wrap(train.images, kind="array", name=name)
            shown = wrap(test.images, test.labels, kind="array", name=f"{name}, test")
            for fusion in fusions.values():
                fusion.add(tuned, data, test=shown, name=name)
        figures = {
            row: fusion.summary()["heads"]["own" if row == averaged else "carried"]["acc"]
            for row, fusion in fusions.items()
        }
        return VerbResult(
            "merge",
            f"{len(tasks)} fine-tunes of the narrow model ({', '.join(tasks)}), each with a head of its own, "
            "were merged one after another into one backbone. A carried head imitates its task's own model: "
            f"it was fitted on {kept} unlabelled pictures with that model's answers. The second row has "
            "such heads on the base model, without a merge.",
            f"mean accuracy over {len(tasks)} tasks",
            {**figures, "one model per task": float(np.mean(alone))},
            rows[1],
            ("one model per task",),
        )

    def adapt(self) -> VerbResult:
        """Teach the wide model to say of two digits side by side whether their sum is odd."""
        train, names = models.pairs(self.train, ROWS, seed=0)
        test, truth = models.pairs(self.test, ROWS, seed=1)
        proxy = wrap(self.train.images, self.train.labels, kind="array", name="digits")

        def accuracy(method: str) -> float:
            model = Recraft(
                backbone=str(self.wide),
                method=method,
                proxy=proxy,
                kind="grid",
                epochs=self.size.adapt,
                seed=0,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransshipWarning)  # they are in the notes, for the page
                model.fit(train, names)
            notes.extend(model.notes_)
            return float(model.score(test, truth))

        notes: list[str] = []
        raw = raw_baselines(train, names, test, truth, task="classification", metric="error", seed=0)
        figures = {
            f"{model.name} on pixels": 1 - model.validation for model in raw if model.name != "constant"
        }
        figures |= {
            "from random weights": accuracy("scratch"),
            "pretrained network": accuracy("recraft"),
        }
        best = max(figures, key=figures.__getitem__)
        return VerbResult(
            "adapt",
            "The wide model has only seen single digits. Here it sees two side by side and learns from "
            f"{ROWS} examples whether their sum is odd. No pixel alone tells: both digits must be known. "
            f"The models on pixels are what you would try first. The best row is: {best}.{_sentences(notes)}",
            "accuracy, odd or even sum",
            figures,
            "pretrained network",
        )

    def _tasks(self) -> dict[str, tuple[Digits, Digits]]:
        """Return the tasks to merge: train and test part by name."""
        views: dict[str, Callable[[Images], Images]] = {
            "turned": models.turned,
            "upside-down": lambda images: images[:, :, ::-1],
            "mirrored": lambda images: images[:, :, :, ::-1],
            "negative": lambda images: 1 - images,
        }
        return {name: (self.train.changed(view), self.test.changed(view)) for name, view in views.items()}

    def _base(self, name: str, width: int) -> Path:
        return models.base_model(self.folder / name, width=width, steps=self.size.pretrain, digits=self.train)

    def _tuned(self, name: str, digits: Digits, *, frozen_head: bool, seed: int = 0) -> Path:
        return models.fine_tune(
            self.folder / name, self.narrow, digits, steps=self.size.tune, frozen_head=frozen_head, seed=seed
        )


def _translate_texts(old: Path, new: Path) -> VerbResult:
    """Translate vectors of all-MiniLM-L6-v2 to a published fine-tune of it, and search among them."""
    texts = [row["text"] for row in models.descriptions()]
    seen, wanted = (features(folder, texts, normalise=True) for folder in (old, new))
    order = np.random.default_rng(0).permutation(len(texts))
    fitted, held = order[: len(order) // 2], order[len(order) // 2 :]
    moved = np.asarray(Ridge().fit(seen[fitted], wanted[fitted]).transform(seen[held]))
    own = np.arange(len(held))
    native, before = wanted[held], seen[held]
    expected = neighbours(native, native, NEAREST, own)
    figures = {
        "new queries, no map": overlap(neighbours(native, before, NEAREST, own), expected),
        "old encoder alone": overlap(neighbours(before, before, NEAREST, own), expected),
        "translated vectors": overlap(neighbours(native, moved, NEAREST, own), expected),
        "all embedded again": 1.0,
    }
    return VerbResult(
        "translate",
        f"{len(texts)} descriptions of functions were embedded with all-MiniLM-L6-v2 and with a published "
        f"fine-tune of it. A ridge map was fitted on {len(fitted)} of them, and the other {len(held)} were "
        f"searched. Recall@{NEAREST} is the share of the fine-tune's own {NEAREST} nearest neighbours that "
        "the search finds.",
        f"recall@{NEAREST}",
        figures,
        "translated vectors",
        ("all embedded again",),
    )


def signals(count: int, seed: int) -> tuple[Any, Any]:
    """Return noisy waves of four shapes, 64 samples folded to [count, 1, 8, 8], and the shapes' numbers."""
    random = np.random.default_rng(seed)
    shapes = random.integers(4, size=count)
    turns = random.uniform(2, 6, (count, 1)) * np.linspace(0, 1, 64, endpoint=False) + random.uniform(
        size=(count, 1)
    )
    phase = turns % 1
    waves = np.stack(
        [np.sin(2 * np.pi * phase), np.sign(0.5 - phase), 4 * np.abs(phase - 0.5) - 1, 2 * phase - 1]
    )
    noisy = waves[shapes, np.arange(count)] + random.normal(scale=0.3, size=(count, 64))
    return noisy.astype(np.float32).reshape(count, 1, 8, 8), shapes


def _sentences(notes: Sequence[str]) -> str:
    return "".join(f" {note[0].upper()}{note[1:].rstrip('.')}." for note in notes)


def _new_head(vectors: Any, answers: Any) -> Any:
    """Return a linear head fitted on the vectors to say what another head said of their partners."""
    # a head that was hardly trained may say one thing of all rows, which logistic regression refuses
    alike = len(np.unique(answers)) == 1
    return (DummyClassifier() if alike else LogisticRegression(max_iter=1000)).fit(vectors, answers)


def _twins(moved: Any, native: Any, nearest: int = 10) -> float:
    """Return the share of rows of `moved` whose own row is among the nearest of `native`, by cosine."""
    scores = unit_rows(moved) @ unit_rows(native).T
    own = np.diagonal(scores)[:, None]
    return float(((scores > own).sum(axis=1) < nearest).mean())


def story(
    bases: Mapping[str, float], steps: Sequence[VerbResult], train: Digits, digits: Digits
) -> report.Page:
    """Return the page: what was trained, then a section per verb with its figures."""
    figures = [
        report.KeyFigure(
            step.verb, f"{step.figures[step.ours]:.1%}", f"{step.baseline}: {step.figures[step.baseline]:.1%}"
        )
        for step in steps
    ]
    held = report.Text(
        "The result of each verb, and below it the best baseline: what you would have without the verb."
    )
    trained = ", ".join(f"{name} {share:.1%}" for name, share in bases.items())
    sections = [
        report.Section(
            "What was trained",
            [
                report.Text(
                    "Two vision transformers of four blocks, one narrow and one wide, were trained on "
                    f"{len(train):,} of scikit-learn's digits. Their accuracy on the other {len(digits)}: "
                    f"{trained}. This is what the models see: digits, the same digits rotated by 90°, and "
                    "pairs of digits side by side."
                ),
                _pictures(digits),
            ],
        )
    ]
    sections += [report.Section(step.verb.capitalize(), _blocks(step)) for step in steps]
    return report.Page(
        "transship: four verbs on two small models",
        "transship re-uses what pretrained models have learned. Every figure on this page was measured just "
        "now, on test data that chose nothing.",
        [report.Section("At a glance", [held, report.KeyFigures(figures)]), *sections],
        report.Provenance(command="transship demo", versions=report.library_versions()),
    )


def _blocks(step: VerbResult) -> list[Any]:
    rows = list(step.figures)
    shares = [round(100 * value, 1) for value in step.figures.values()]
    drawn = report.figures.bars(
        rows,
        {step.unit: shares},
        label_title="model",
        value_title=f"{step.unit} [%]",
        caption=f"{step.verb.capitalize()}: {step.unit}. The result of the verb is in colour.",
        highlight=step.ours,
    )
    return [report.Text(step.story), drawn, *step.extra]


def _pictures(digits: Digits, count: int = 6) -> Any:
    """Return what the models see: a row of digits, one of turned digits and one of pairs."""
    shown = [digits.images[:count], turned(digits.images[:count])]
    rows = [np.concatenate([np.pad(image[0], 1) for image in row], axis=1) for row in shown]
    doubled, _ = models.pairs(digits, count // 2, seed=1)
    rows.append(np.concatenate([np.pad(image[0], ((1, 1), (2, 2))) for image in doubled], axis=1))
    picture = np.concatenate(rows)
    return report.figures.heat_map(
        picture.tolist(),
        rows=[str(place) for place in range(picture.shape[0])],
        columns=[str(place) for place in range(picture.shape[1])],
        row_title="pixel row",
        column_title="pixel column",
        value_title="brightness",
        caption="Digits, the same digits rotated by 90°, and pairs of digits side by side.",
        limits=(0.0, 1.0),
        pixels=True,
    )


def write(page: report.Page, folder: Path) -> Path:
    """Write the page into the demo's folder, in place of an earlier one."""
    return report.html.write(page, folder / "report.html", force=True)
