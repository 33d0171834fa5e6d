"""LinearMap: a linear or affine function between two spaces, fitted from Moments or rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transship.atomic import atomic_file
from transship.errors import DataError, OptionError

FORMAT, VERSION = "transship.map", 1
ARRAYS = ("matrix", "source_mean", "target_mean")


@dataclass(frozen=True, eq=False)
class LinearMap:
    """y = target_mean + (x − source_mean) · matrix; means that are None count as zero.

    Attributes:
        matrix: W, applied from the right to rows.
        source_mean: what is subtracted first, or None.
        target_mean: what is added last, or None.
        kind: how it was fitted (`procrustes`, `linear`, `ridge`, `affine`, `cca`, …).
        rank: the observed rank: outside those directions of the source, the data says nothing.
        tolerance: the relative cut that decided the rank.
        details: numbers of the fit (λ, scale, GCV, …).
    """

    matrix: Float[Tensor, "source target"]
    source_mean: Float[Tensor, " source"] | None = None
    target_mean: Float[Tensor, " target"] | None = None
    kind: str = "linear"
    rank: int = 0
    tolerance: float = 0.0
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def width_source(self) -> int:
        return self.matrix.shape[0]

    @property
    def width_target(self) -> int:
        return self.matrix.shape[1]

    @property
    def bias(self) -> Float[Tensor, " target"] | None:
        """The b of y = x W + b, that is target_mean − source_mean W; None when the map is linear."""
        return self._offset(self.target_mean)

    def _offset(self, end: Tensor | None) -> Tensor | None:
        """Return end − source_mean W."""
        if self.source_mean is None:
            return end
        start = self.source_mean @ self.matrix
        return -start if end is None else end - start

    @property
    def full_rank(self) -> bool:
        """Whether the data determined the map altogether."""
        return self.rank >= min(self.matrix.shape)

    def apply(
        self, rows: Float[Tensor, "*rows source"], *, direction: bool = False
    ) -> Float[Tensor, "*rows target"]:
        """Return the rows in the target space, in their own dtype.

        With `direction` the target mean is left out: for a translated query it would be a bias per document.
        """
        if rows.shape[-1] != self.width_source:
            raise DataError(
                f"rows of width {rows.shape[-1]} do not fit a map from {self.width_source}",
                where=f"{self.kind} map",
                fix="give rows of the source space",
            )
        moved = rows @ self.matrix.to(rows)
        offset = self._offset(None if direction else self.target_mean)
        return moved if offset is None else moved + offset.to(rows)

    def inverse(self) -> "LinearMap":
        """Return the map back, for orthogonal maps: Tᵀ/scale, exact on the observed directions."""
        if self.kind != "procrustes":
            raise OptionError(
                f"a {self.kind} map has no meaningful inverse", where="inverse", fix="fit the other direction"
            )
        scale = self.details.get("scale", 1.0)
        return LinearMap(
            self.matrix.T / scale**2,
            self.target_mean,
            self.source_mean,
            self.kind,
            self.rank,
            self.tolerance,
            {**self.details, "scale": 1.0 / scale},
        )

    def then(self, other: "LinearMap") -> "LinearMap":
        """Return the map that applies this one first and `other` to its result."""
        bias = self.bias if self.bias is not None else torch.zeros_like(self.matrix[0])
        end = other.apply(bias)
        affine = self.bias is not None or other.bias is not None
        return LinearMap(
            self.matrix @ other.matrix,
            None,
            end if affine else None,
            f"{self.kind}+{other.kind}",
            min(self.rank, other.rank),
            max(self.tolerance, other.tolerance),
        )

    def to(self, dtype: torch.dtype) -> "LinearMap":
        return LinearMap(
            self.matrix.to(dtype),
            None if self.source_mean is None else self.source_mean.to(dtype),
            None if self.target_mean is None else self.target_mean.to(dtype),
            self.kind,
            self.rank,
            self.tolerance,
            self.details,
        )

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays by name, for a file that holds more than this map."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in arrays.items() if array is not None}

    def metadata(self) -> dict[str, object]:
        """Return what describes the map beside its arrays, as JSON can hold it."""
        return {
            "kind": self.kind,
            "rank": self.rank,
            "tolerance": self.tolerance,
            "details": dict(self.details),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor], metadata: Mapping[str, object]) -> "LinearMap":
        """Return the map that `arrays` and `metadata` describe."""
        details = metadata.get("details", {})
        assert isinstance(details, Mapping)
        return LinearMap(
            arrays["matrix"],
            arrays.get("source_mean"),
            arrays.get("target_mean"),
            str(metadata["kind"]),
            int(str(metadata["rank"])),
            float(str(metadata["tolerance"])),
            {str(name): float(value) for name, value in details.items()},
        )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file (beside the target, then renamed)."""
        about = {"format": FORMAT, "version": str(VERSION), "map": json.dumps(self.metadata())}
        write_arrays(path, self.arrays(), about)

    @classmethod
    def load(cls, path: str | Path) -> "LinearMap":
        """Read what `save` wrote."""
        arrays, about = read_arrays(path, FORMAT, VERSION)
        try:
            return LinearMap.from_arrays(arrays, json.loads(about["map"]))
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise DataError(
                f"is not a complete map file ({type(error).__name__}: {error})",
                where=str(path),
                fix="fit and save the map again",
            ) from error


def write_arrays(path: str | Path, arrays: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write `arrays` and the strings `about` them; the old file stays until the new one is whole."""
    whole = {name: array.detach().cpu().contiguous() for name, array in arrays.items()}
    with atomic_file(path, force=True) as draft:
        save_file(whole, draft, metadata=dict(about))
        _order_header(draft)


def _order_header(path: Path) -> None:
    """Sort the strings in the header, which the writer leaves in an order of chance."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= size:  # padded with spaces, as the format has it
            file.seek(8)
            file.write(ordered.ljust(size))


def read_arrays(path: str | Path, kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return arrays and strings of a file of format `kind`, at most of `version`; else one clear error."""
    where = str(path)
    if not Path(path).is_file():
        raise DataError("there is no such file", where=where, fix="check the path")
    try:
        with safe_open(where, framework="pt") as file:
            about = dict(file.metadata() or {})
            _check_kind(about, kind, version, where)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"is not a readable safetensors file ({error})",
            where=where,
            fix="write it again: it may be cut off",
        ) from error
    broken = next((name for name, array in arrays.items() if not _finite(array)), None)
    if broken is not None:
        raise DataError(f"the array '{broken}' holds NaN or Inf", where=where, fix="write it again")
    return arrays, about


def _finite(array: Tensor) -> bool:
    return not array.is_floating_point() or bool(torch.isfinite(array.sum()))


def _check_kind(about: Mapping[str, str], kind: str, version: int, where: str) -> None:
    if about.get("format") != kind:
        raise DataError(
            f"is a file of format '{about.get('format', 'unknown')}', not '{kind}'",
            where=where,
            fix="check the path",
        )
    written = about.get("version", "")
    if not written.isdigit() or int(written) > version:
        raise DataError(
            f"has version '{written}', and this transship reads up to {version}",
            where=where,
            fix="update transship, or write the file again",
        )
