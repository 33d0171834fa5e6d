"""What a suite's `run` is handed beside its case: options, seeds, and a place for costly things."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from transship.numerics import derive_seed
from transship_suites.runner.cache import Cache
from transship_suites.runner.quantities import Case, Options
from transship_suites.runner.sources import code_fingerprint

if TYPE_CHECKING:
    from transship.types import Array


class Context:
    """The surroundings of one case.

    Attributes:
        suite: the suite's name.
        case: the case that is run.
        options: of the scale.
        device: where models run.
        attachments: small JSON values that are kept with the result.
    """

    def __init__(
        self, suite: str, case: Case, options: Options, cache: Cache, *, device: str = "cpu"
    ) -> None:
        self.suite, self.case, self.options, self.device = suite, case, options, device
        self._cache = cache
        self.attachments: dict[str, Any] = {}

    def seed(self, *keys: object) -> int:
        """Return a seed for one purpose, from the case's seed and what names the purpose.

        It does not depend on the case's factors, so that rows that name the same purpose share its draws.
        """
        return derive_seed(self.case.seed, self.suite, *keys)

    def cached(
        self,
        kind: str,
        parts: Mapping[str, Any],
        make: Callable[[], Mapping[str, Array]],
        *,
        code: tuple[Any, ...],
    ) -> dict[str, Array]:
        """Return the arrays that `make` computes, once for the same parts and code, in any case of any suite.

        Args:
            kind: names the sort of thing; a folder of the cache.
            parts: everything that `make` depends on: options, seeds, fingerprints of data. JSON values.
            make: computes named arrays.
            code: the functions and classes whose change makes it another thing. Their source text is hashed
                without comments; what they call in turn must be named too, or stand for itself as a part.
        """
        return self._cache.get(kind, {"parts": dict(parts), "code": code_fingerprint(*code)}, make)

    def attach(self, name: str, value: Any) -> None:
        """Keep a small JSON value (a matrix, points of a picture) with the result, for `Suite.figures`."""
        self.attachments[name] = value
