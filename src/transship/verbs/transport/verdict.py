"""What a result is worth, in one sentence, and what a user must be warned of."""

from collections.abc import Iterator
from dataclasses import dataclass

from transship.report import short_name
from transship.verbs.transport.scores import Row, Scores

# points below the fine-tuned source from which a result must say why
FAR = 0.03


@dataclass(frozen=True)
class Verdict:
    """One sentence, and warnings.

    Attributes:
        sentence: the result next to what it must be held against.
        warnings: what speaks against using it, a sentence each.
    """

    sentence: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """How a classifier answers as it is written, on inputs that nothing was fitted on.

    Attributes:
        share: of the inputs that are answered as labelled, otherwise as the fine-tuned source answers them.
        inputs: how many there are.
        source: the fine-tuned source's own share, where there are labels.
        majority: the share of the most common class, where there are labels.
        fitted: whether maps were fitted on these inputs after all, because too few were left over.
    """

    share: float
    inputs: int
    source: float | None = None
    majority: float | None = None
    fitted: bool = False

    @property
    def labelled(self) -> bool:
        """Whether the share is of labels."""
        return self.source is not None


def on_test(scores: Scores, *, inputs: int | None, moved: bool) -> Verdict | None:
    """Return the verdict of rows on which nothing was chosen; None where what is written was not measured.

    Args:
        scores: of the fine-tuned source, the untouched and the transported target.
        inputs: how many inputs a carried head was fitted on; None where the target's own answers.
        moved: whether any weight moved.
    """
    carried = inputs is not None
    if scores.test is None or len(scores.rows) != 3:
        return None
    source, untouched, result = scores.rows
    value, before = (_answer(row, carried=carried) for row in (result, untouched))
    if value is None:
        return None
    beside = [("fine-tuned source", source.own_head), ("untouched target's probe", untouched.probe)]
    beside += [
        (f"untouched target with {'a carried' if carried else 'its own'} head", before if moved else None)
    ]
    beside += [("the most common class", scores.majority)]
    others = ", ".join(f"{name} {_shown(scores, figure)}" for name, figure in beside if figure is not None)
    rows = f"{scores.test_rows} {scores.unit} of {short_name(scores.test)}"
    sentence = (
        f"{_shown(scores, value)} of the {rows} are answered as labelled"
        if scores.metric == "accuracy"
        else f"the {scores.metric} with the labels of {rows} is {_shown(scores, value)}"
    )
    warnings = tuple(_against(scores, value, source, untouched, inputs))
    return Verdict(f"{sentence} ({others})." if others else f"{sentence}.", warnings)


def on_inputs(check: Check, inputs: int | None) -> Verdict:
    """Return the verdict where nothing was measured on test rows; `inputs` as in `on_test`."""
    warnings, shown = [], f"{100 * check.share:.1f} % of the {check.inputs}"
    if check.source is None or check.majority is None:
        which = "inputs that maps were fitted on" if check.fitted else "inputs that nothing was fitted on"
        if 1 - check.share > FAR:
            warnings.append(
                f"it may be up to {100 * (1 - check.share):.1f} points below the fine-tuned source: "
                f"{_short_of(inputs)}"
            )
        sentence = (
            f"{shown} {which} are answered as the fine-tuned source answers them; --test DATA with labels "
            "says how many rightly."
        )
        return Verdict(sentence, tuple(warnings))
    if check.share <= check.majority:
        warnings.append(_no_better(check.share, check.majority, f"{check.inputs} validation labels"))
    if check.source - check.share > FAR:
        points = 100 * (check.source - check.share)
        warnings.append(f"it is {points:.1f} points below the fine-tuned source: {_short_of(inputs)}")
    sentence = (
        f"{shown} validation rows are answered as labelled (fine-tuned source {100 * check.source:.1f} %, "
        f"the most common class {100 * check.majority:.1f} %); the strength was chosen on them, and --test "
        "DATA measures it on others."
    )
    return Verdict(sentence, tuple(warnings))


def _answer(row: Row, *, carried: bool) -> float | None:
    return row.carried_head if carried else row.own_head


def _against(scores: Scores, value: float, source: Row, untouched: Row, inputs: int | None) -> Iterator[str]:
    if scores.majority is not None and value <= scores.majority:
        yield _no_better(value, scores.majority, f"{scores.test_rows} {scores.unit}")
    if untouched.probe is not None and value < untouched.probe:
        yield (
            f"a probe on the untouched target is better ({_shown(scores, untouched.probe)} against "
            f"{_shown(scores, value)}): train a head on your {scores.probe_labels} labels instead"
        )
    if source.own_head is not None and source.own_head - value > FAR:
        why = _why(scores, source, untouched, inputs)
        yield f"it is {100 * (source.own_head - value):.1f} points below the fine-tuned source: {why}"


def _why(scores: Scores, source: Row, untouched: Row, inputs: int | None) -> str:
    """Return why a result is far below the source, and what to try."""
    assert source.own_head is not None
    if untouched.probe is not None and untouched.probe < source.own_head - FAR:
        return (
            f"the target's features hold less of the task (a probe with {scores.probe_labels} labels reaches "
            f"{_shown(scores, untouched.probe)}), so give more rows in DATA, or another target"
        )
    return _short_of(inputs)


def _short_of(inputs: int | None) -> str:
    if inputs is not None:
        return f"its head was fitted on {inputs} inputs, so give more rows in DATA"
    return "the moved weights recover a part only; --method carry fits a head too"


def _no_better(value: float, majority: float, rows: str) -> str:
    return (
        f"it is no better than always answering the most common class ({100 * value:.1f} % against "
        f"{100 * majority:.1f} % of {rows}): do not use it"
    )


def _shown(scores: Scores, value: float) -> str:
    return f"{100 * value:.1f} %" if scores.metric == "accuracy" else f"{value:.3f}"
