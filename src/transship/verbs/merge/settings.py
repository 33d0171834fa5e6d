"""What the commands of merge can be told. Nothing here imports numpy, so that `--help` answers at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transship.fields import setting
from transship.numerics import parse_bytes

# a size in parameters, as mergekit counts shards
PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)([KMB])")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How a recipe is read.

    Attributes:
        seed: fixes the random methods; the recipe's seed by default.
        allow_pickle: read .bin and .pt files too (weights only).
    """

    seed: int | None = None
    allow_pickle: bool = False


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a plan is carried out.

    Attributes:
        jobs: threads that compute tensors; the result is the same for any number.
        memory: memory limit per process, for example 2GB. Memory-mapped files do not count. Work that cannot
            fit is refused before it starts, and fewer threads are used where they would not fit.
        device: where models run: cpu, cuda, cuda:1, mps; auto is a GPU of CUDA where there is one.
        device_map: spread each model over devices instead: auto, or JSON of module and device.
        dtype: what models run in where data is read; float32 by default.
        out_shard_size: the largest size of a weight file, such as 5GB. As in mergekit, 5B, 500M and 10K count
            parameters.
        copy_tokenizer: write the tokenizer's files.
        write_model_card: write README.md and transship.json.
        trust_remote_code: run code that a model's repository carries, where data is read.
    """

    jobs: int = setting(1, least=1, most=1024)
    memory: str | int | None = setting(None, metavar="SIZE")
    device: str = "auto"
    device_map: str | None = setting(None, metavar="MAP")
    dtype: str | None = None
    out_shard_size: str = setting("5GB", metavar="SIZE")
    copy_tokenizer: bool = setting(True, absent=True)
    write_model_card: bool = setting(True, absent=True)
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not PARAMETERS.fullmatch(self.out_shard_size.strip().upper()):
            parse_bytes(self.out_shard_size, "--out-shard-size")


_HEADS = (
    "How heads are made: own, tuned, tuned-fresh, carried-once, carried or carried-polished. Several are "
    "compared, and the first is saved. By default carried-polished with kept inputs, carried-once without."
)


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """What a fusion is started with.

    Attributes:
        base: the model that all fine-tunes were made from.
        method: how models join; see `transship methods merge`. auto is average.
        heads: kinds of head; several are compared, the first is saved.
        keep_inputs: keep up to this many inputs of each task in OUT, so that its head can be fitted again.
        strength: the scale of the merged update: a number, norm or validation. auto is norm for method auto
            with kept inputs, and 1 otherwise.
        finish: none, weights or weights:STEPS. weights trains merged backbone and heads on the answers of the
            tasks' own models to the kept inputs, by default for 200 steps per task. auto is none.
        batch_size: inputs per forward pass.
    """

    base: str
    method: str = "auto"
    heads: tuple[str, ...] = setting((), help=_HEADS)
    keep_inputs: int = setting(0, metavar="N")
    strength: float | str = "auto"
    finish: str = setting("auto", metavar="KIND[:STEPS]")
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class RemoveSettings:
    """What a leaving model had read.

    Attributes:
        data: the same data as when it was added, if the method reads data.
        column: the column of DATA that holds the inputs.
        label: the column of DATA that holds the labels.
    """

    data: str | None = None
    column: str | None = None
    label: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """Return the columns that were named, as `data.load` takes them."""
        named = {"column": self.column, "label": self.label}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class AddSettings(RemoveSettings):
    """What a joining model reads.

    Attributes:
        data: inputs of the task. Test rows in it are only used to measure.
        test: other labelled data to measure on.
        name: what the task is called; the folder's name by default.
        inputs: read at most this many inputs.
        test_rows: measure on at most this many test rows.
        finish: whether the fusion is finished now; of several models in a row, the last will do.
    """

    test: str | None = None
    name: str | None = None
    inputs: int = 1000
    test_rows: int = 1000
    finish: bool = setting(True, negative="--no-finish", help="Leave the finish to a later model.")
