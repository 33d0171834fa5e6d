"""Two machines: one encodes, the other decodes, and neither sees the other's vectors.

The machines share the ids of the anchors and an `Agreement`. The encoder holds its own anchors only and sends
`Wire` rows, numbers per anchor; the decoder holds its own anchors only and turns them into vectors. All
methods that split this way use the same three files, and every file carries the signature of the agreement:
what was made under another one is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from transship.atomic import write_text
from transship.errors import DataError
from transship.geometry.maps import read_arrays, write_arrays
from transship.outside import complete, read_json
from transship.types import Array
from transship.verbs.translate.maps.base import like, to_tensor, unit, working
from transship.verbs.translate.maps.vectors import anchors_hash

FORMAT, VERSION = "transship.wire", 1
MOST_ANCHORS = 10**8


@dataclass(frozen=True)
class Agreement:
    """What both machines know: the method, its parameters, which anchors, and the index lists if any.

    Attributes:
        method: the method's name.
        parameters: those of its parameters that both sides need.
        anchors: hash of the anchors' ids in order.
        count: how many anchors there are.
        lists: for IRP the anchors of every subspace, by position.
    """

    method: str
    parameters: Mapping[str, Any]
    anchors: str
    count: int
    lists: tuple[tuple[int, ...], ...] = ()

    @property
    def used(self) -> Array:
        """The positions of all anchors that take part, sorted: the columns of the wire."""
        if not self.lists:
            return np.arange(self.count)
        return np.unique(np.concatenate([np.asarray(indices, dtype=np.int64) for indices in self.lists]))

    def signature(self) -> str:
        """Return the hash that every file made under this agreement carries."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:32]

    def check_ids(self, ids: Sequence[Any], where: str) -> None:
        """Refuse anchors other than the agreed ones, or in another order."""
        if len(ids) != self.count or anchors_hash(ids) != self.anchors:
            raise DataError(
                f"the {len(ids)} anchor ids are not the {self.count} agreed ones in their order",
                where=where,
                fix="fit both machines on the same ids, in the same order",
            )

    def save(self, path: str | Path) -> None:
        document = {"format": "transship.agreement", **self.to_dict()}
        write_text(path, json.dumps(document), force=True)

    @classmethod
    def load(cls, path: str | Path) -> Agreement:
        """Read what `save` wrote."""
        plain = read_json(Path(path), "write it again with Agreement.save", DataError)
        with complete(path, "write it again with Agreement.save"):
            if plain.pop("format") != "transship.agreement":
                raise KeyError("format")
            return cls.from_dict(plain)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"lists": [list(map(int, indices)) for indices in self.lists]}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Agreement:
        """Return what `to_dict` gave."""
        count, lists = int(plain["count"]), tuple(tuple(map(int, indices)) for indices in plain["lists"])
        if not 0 <= count <= MOST_ANCHORS or any(not 0 <= place < count for row in lists for place in row):
            raise ValueError("its lists name anchors that it does not have")
        return cls(str(plain["method"]), dict(plain["parameters"]), str(plain["anchors"]), count, lists)


@dataclass(frozen=True)
class Wire:
    """Encoded rows on their way: values [rows, used anchors], and under which agreement they were made."""

    values: Any
    signature: str

    def save(self, path: str | Path) -> None:
        about = {"format": FORMAT, "version": str(VERSION), "signature": self.signature}
        write_arrays(path, {"values": to_tensor(self.values)}, about)

    @classmethod
    def load(cls, path: str | Path) -> Wire:
        """Read what `save` wrote."""
        arrays, about = read_arrays(path, FORMAT, VERSION)
        with complete(path, "send it again"):
            return cls(arrays["values"].numpy(), about.get("signature", ""))


@dataclass(frozen=True)
class Half:
    """One machine's half of a translator.

    An encoder computes centre (and, for some methods, length or kernel) and one product; a decoder one
    product and the mean. `arrays` holds `mean` [width] and `matrix`: for an encoder [width or landmarks,
    used anchors], for a decoder [used anchors, width].
    """

    role: Literal["encoder", "decoder"]
    agreement: Agreement
    arrays: Mapping[str, Array]
    unit_rows: bool = False
    gamma: float | None = None

    def encode(self, rows: Any) -> Wire:
        """Return what travels for rows [rows, source]."""
        self._must_be("encoder")
        tensor = self._checked(rows, self.arrays["mean"].shape[0])
        centred = tensor - self._tensor("mean", tensor)
        if self.gamma is not None:
            features = rbf(centred, self._tensor("landmarks", tensor), self.gamma)
        else:
            features = unit(centred) if self.unit_rows else centred
        values = features @ self._tensor("matrix", tensor)
        if "offset" in self.arrays:
            values = values + self._tensor("offset", tensor)
        return Wire(like(values, rows), self.agreement.signature())

    def decode(self, wire: Wire) -> Any:
        """Return the vectors [rows, target] of what came; refused when made under another agreement."""
        self._must_be("decoder")
        if wire.signature != self.agreement.signature():
            raise DataError(
                f"the rows were encoded under agreement {wire.signature[:8] or 'unknown'}, "
                f"this decoder belongs to {self.agreement.signature()[:8]}",
                where="decode",
                fix="fit encoder and decoder on the same anchors, method and parameters",
            )
        tensor = self._checked(wire.values, self.arrays["matrix"].shape[0])
        return like(tensor @ self._tensor("matrix", tensor) + self._tensor("mean", tensor), wire.values)

    def leave_one_out(self, wire: Wire) -> Any:
        """Return the leave-one-out predictions at the anchors, from the encoder's wire of the anchors.

        Only smoothers (ridge, kernel ridge) have them: with H the wire, [anchors, anchors], they are
        (H y − h y_i) / (1 − h), h the diagonal. So the decoder can tell the encoder how good its λ is.
        """
        values = np.asarray(wire.values, dtype=np.float64)
        if values.shape[0] != values.shape[1] or self.agreement.lists:
            raise DataError(
                f"a wire of shape {values.shape} is not that of all anchors of a smoother",
                where="leave_one_out",
                fix="encode all anchors, in order, with ridge or kernel",
            )
        predicted = np.asarray(self.decode(Wire(values, wire.signature)))
        own = self.arrays["matrix"] + self.arrays["mean"]
        # what the weights leave of one goes to the mean, in which every anchor has the same share
        leverage = (np.diagonal(values) + (1.0 - values.sum(1)) / len(values))[:, None]
        return (predicted - leverage * own) / (1.0 - leverage)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file; the agreement travels in its header."""
        about = {"format": f"{FORMAT}.{self.role}", "version": str(VERSION)}
        about["agreement"] = json.dumps(self.agreement.to_dict())
        about["unit_rows"] = json.dumps(self.unit_rows)
        about["gamma"] = json.dumps(self.gamma)
        write_arrays(path, {name: to_tensor(array) for name, array in self.arrays.items()}, about)

    @classmethod
    def load(cls, path: str | Path, role: Literal["encoder", "decoder"]) -> Half:
        """Read what `save` wrote; the role is asked for, so that the halves are not mixed up."""
        arrays, about = read_arrays(path, f"{FORMAT}.{role}", VERSION)
        with complete(path, "write it again"):
            agreement = Agreement.from_dict(json.loads(about["agreement"]))
            unit_rows, gamma = json.loads(about["unit_rows"]), json.loads(about["gamma"])
            gamma = None if gamma is None else float(gamma)
            plain = {name: array.numpy() for name, array in arrays.items()}
            half = cls(role, agreement, plain, bool(unit_rows), gamma)
            half.check()
        return half

    def check(self) -> None:
        """Refuse arrays that do not fit together: one row has to pass."""
        names = ("mean",) if self.role == "encoder" else ("matrix",)
        width = self.arrays[names[0]].shape[0]
        if self.role == "encoder":
            self.encode(np.ones((1, width)))
        else:
            self.decode(Wire(np.ones((1, width)), self.agreement.signature()))

    def _must_be(self, role: str) -> None:
        if self.role != role:
            raise DataError(f"this half is the {self.role}", where=role, fix=f"use the {role}'s half")

    def _checked(self, given: Any, width: int) -> Tensor:
        rows = working(to_tensor(given))
        if rows.ndim != 2 or rows.shape[1] != width:
            raise DataError(
                f"rows of shape {tuple(rows.shape)} instead of [rows, {width}]",
                where=f"the {self.role} of {self.agreement.method}",
                fix="give vectors of the model that the anchors came from",
            )
        return rows

    def _tensor(self, name: str, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.arrays[name]).to(rows)


def smoother_decoder(anchors: Any, ids: Sequence[Any], agreement: Agreement) -> Half:
    """Return the decoder of weights per anchor, r (Y − μ) + μ: no inverse."""
    agreement.check_ids(ids, "fit_decoder")
    rows = to_tensor(check_array(anchors)).double()
    mean = rows.mean(0)
    return Half("decoder", agreement, {"mean": mean.numpy(), "matrix": (rows - mean).numpy()})


def rbf(rows: Tensor, landmarks: Tensor, gamma: float) -> Tensor:
    """Return exp(−γ ‖x − l‖²) for all rows and landmarks, [rows, landmarks]."""
    squared = torch.addmm(landmarks.square().sum(1), rows, landmarks.T, alpha=-2.0)
    squared += rows.square().sum(1, keepdim=True)
    return squared.clamp_min_(0.0).mul_(-gamma).exp_()
