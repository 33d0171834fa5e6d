"""How a finish is asked for: what may move, and for how many steps. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from transship.errors import OptionError
from transship.fields import unknown

Moves = Literal["none", "tensor", "row", "weights"]
MOVES: tuple[Moves, ...] = get_args(Moves)
# steps where none are asked for, and the rates of Adam that are tried: of strengths, which lie near 1, and
# of weights, which move by some 1e-2 in a whole fine-tune
STEPS: dict[Moves, int] = {"none": 0, "tensor": 60, "row": 160, "weights": 160}
RATES: dict[Moves, tuple[float, ...]] = {
    "none": (),
    "tensor": (0.02, 0.05, 0.15),
    "row": (0.02, 0.05, 0.15),
    "weights": (3e-4, 1e-3, 2e-3),
}


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a finish may move, and for how long.

    Attributes:
        moves: `tensor`, a strength per moved tensor; `row`, one per row of it; `weights`, all of them.
        steps: of Adam, at most: held-out inputs say when to stop.
        batch_size: inputs of each lesson per step.
        lessons: how many lessons a step takes, in turn; None for all.
        rates: of Adam that are tried; one is taken as it is.
        held_out: the share of the inputs that chooses the rate and the end.
        seed: of every draw.
    """

    moves: Moves = "none"
    steps: int = 0
    batch_size: int = 32
    lessons: int | None = None
    rates: tuple[float, ...] = ()
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.moves not in MOVES:
            raise unknown(self.moves, MOVES, kind="finish", where="--finish")
        if self.steps < 0 or self.batch_size < 1:
            raise OptionError(
                f"{self.steps} steps of {self.batch_size} inputs", where="--finish", fix="give 1 or more"
            )

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> Finish:
        """Return what `none`, `row` or `weights:40` asks for."""
        name, colon, count = text.partition(":")
        moves = next((known for known in MOVES if known == name), None)
        if moves is None:
            raise unknown(name, (*MOVES, "auto"), kind="finish", where="--finish")
        steps = STEPS[moves]
        if colon:
            if not count.isdecimal() or moves == "none":
                raise OptionError(
                    f"'{text}' is no finish", where="--finish", fix="write it as row, weights or weights:40"
                )
            steps = int(count)
        return cls(moves=moves, steps=steps, rates=RATES[moves], seed=seed)

    @property
    def trial(self) -> int:
        """Steps that each rate is tried for: a quarter of all, and all where these are few."""
        return min(self.steps, max(40, self.steps // 4)) if len(self.rates) > 1 else 0

    @property
    def most_steps(self) -> int:
        trials = len(self.rates) * self.trial
        return trials if self.trial == self.steps and trials else trials + self.steps

    def __str__(self) -> str:
        return "none" if self.moves == "none" else f"{self.moves}:{self.steps}"
