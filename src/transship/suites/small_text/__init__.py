"""Sentence encoders with heads, tasks for them, and probes: what text suites share."""

from __future__ import annotations

from transship.suites.small_text.encoders import Classifier, Pooled, fine_tune, load_encoder, predict
from transship.suites.small_text.probes import logistic_probe
from transship.suites.small_text.tasks import TASKS, Texts, load_texts, operations_phrases

__all__ = [
    "TASKS",
    "Classifier",
    "Pooled",
    "Texts",
    "fine_tune",
    "load_encoder",
    "load_texts",
    "logistic_probe",
    "operations_phrases",
    "predict",
]
