"""What goes wrong, said in one sentence: where, what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

# what a terminal obeys instead of showing: controls but tab and line feed, signs that turn the reading
# direction, lone surrogates
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class TransshipError(Exception):
    """A mistake that the user can mend; the command line prints the sentence and exits with 2.

    Attributes:
        what: what is wrong.
        where: the file, tensor, site, column or option that it concerns.
        fix: what the user can do about it.
        listed: what is wrong one by one, where a sentence would be too long.
    """

    def __init__(self, what: str, *, where: str, fix: str, listed: Sequence[str] = ()) -> None:
        self.what, self.where, self.fix, self.listed = what, where, fix, tuple(listed)
        super().__init__(self.said())

    def said(self, escape: Callable[[str], str] = str) -> str:
        """Return the sentence, or a line for each thing listed, with every part escaped."""
        if not self.listed:
            return escape(f"{self.where}: {self.what}; {self.fix}")
        rows = [f"  {escape(row)}" for row in self.listed]
        return "\n".join([f"{escape(self.where)}: {escape(self.what)}:", *rows, escape(self.fix)])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts, so that the error survives a trip from a worker process."""
        return (_rebuild, (type(self), self.what, self.where, self.fix, self.listed))


def _rebuild(
    kind: type[TransshipError], what: str, where: str, fix: str, listed: Sequence[str]
) -> TransshipError:
    return kind(what, where=where, fix=fix, listed=listed)


def printable(text: object) -> str:
    """Return text that a terminal may show: what came from outside cannot move its cursor or set a title."""
    return CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), str(text))


class CheckpointError(TransshipError):
    """Weights at rest that cannot be opened, trusted or combined."""


class DataError(TransshipError):
    """Input data that is missing, empty, ragged or mislabelled."""


class MatchError(TransshipError):
    """Two models whose sites do not correspond."""


class NumericalError(TransshipError):
    """Numbers that are not finite, or a system that the data does not determine."""


class OutputError(TransshipError):
    """A target that exists already, or a disk that cannot take it."""


class OptionError(TransshipError):
    """An option, a method's parameter or a recipe key that does not exist or does not fit."""


class MissingError(TransshipError):
    """A model, a data set or an optional library that is not here."""


class LaunchError(TransshipError):
    """Work that several processes share and that one of them left."""


class TransshipWarning(UserWarning):
    """Something that the user should know and that does not stop the work."""
