"""What a suite's `run` is handed beside its case: options, seeds, and a place for costly things."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from transship.numerics import derive_seed
from transship_suites.runner.cache import Cache, load_arrays, save_arrays
from transship_suites.runner.declaration import Case, Options
from transship_suites.runner.sources import code_fingerprint

Made = TypeVar("Made")


class Context:
    """The surroundings of one case.

    Attributes:
        suite: the suite's name.
        case: the case that is run.
        options: of the scale.
        device: where models run.
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

    @overload
    def cached(
        self,
        kind: str,
        parts: Mapping[str, Any],
        make: Callable[[], dict[str, Any]],
        *,
        code: tuple[Any, ...],
    ) -> dict[str, Any]: ...

    @overload
    def cached(
        self,
        kind: str,
        parts: Mapping[str, Any],
        make: Callable[[], Made],
        *,
        code: tuple[Any, ...],
        save: Callable[[Made, Path], None],
        load: Callable[[Path], Made],
    ) -> Made: ...

    def cached(
        self,
        kind: str,
        parts: Mapping[str, Any],
        make: Callable[[], Any],
        *,
        code: tuple[Any, ...],
        save: Callable[[Any, Path], None] = save_arrays,
        load: Callable[[Path], Any] = load_arrays,
    ) -> Any:
        """Return what `make` makes, made once for the same parts and code, by any case of any suite.

        Args:
            kind: names the sort of thing; a folder of the cache.
            parts: everything that `make` depends on: options, seeds, fingerprints of data. JSON values.
            make: computes it; named arrays unless `save` and `load` say otherwise.
            code: the functions and classes whose change makes it another thing. Their source text is hashed
                without comments; what they call in turn must be named too, or stand for itself as a part.
            save: writes it into an empty folder; never as pickle.
            load: reads it from that folder.
        """
        whole = {"parts": dict(parts), "code": code_fingerprint(*code)}
        return self._cache.get(kind, whole, make, save=save, load=load)

    def attach(self, name: str, value: Any) -> None:
        """Keep a small JSON value (a matrix, points of a picture) with the result, for `Suite.figures`."""
        self.attachments[name] = value
