"""Weights at rest: open, read by chunks, update, write atomically. On numpy; torch only where asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transship.doors import door

if TYPE_CHECKING:
    from transship.checkpoints.adapters import write_adapter
    from transship.checkpoints.card import Input, ModelCard
    from transship.checkpoints.checkpoint import Checkpoint, check_finite
    from transship.checkpoints.description import Description, describe, describe_update
    from transship.checkpoints.dtypes import CHUNK, DType, find_dtype, narrow, widen
    from transship.checkpoints.extraction import Extraction, extract
    from transship.checkpoints.footprint import Footprint
    from transship.checkpoints.lora import Adapter
    from transship.checkpoints.opening import open
    from transship.checkpoints.update import TensorSummary, Update
    from transship.checkpoints.weightfile import TensorInfo, WeightFile
    from transship.checkpoints.write import TensorPlan, applied, copied, write_checkpoint, write_file
else:
    __getattr__, __dir__ = door(__name__)

__all__ = [
    "CHUNK",
    "Adapter",
    "Checkpoint",
    "DType",
    "Description",
    "Extraction",
    "Footprint",
    "Input",
    "ModelCard",
    "TensorInfo",
    "TensorPlan",
    "TensorSummary",
    "Update",
    "WeightFile",
    "applied",
    "check_finite",
    "copied",
    "describe",
    "describe_update",
    "extract",
    "find_dtype",
    "narrow",
    "open",
    "widen",
    "write_adapter",
    "write_checkpoint",
    "write_file",
]
