"""Checkpoints read without torch, and without running a byte of them.

`recognise` tells a format by content, `open_checkpoint` names every tensor and its byte range, and
what is wrong; `records` measures the tensors, as a stream for the checks.
"""

from __future__ import annotations

from headway.checkpoints.checkpoint_discovery import (
    SUPPORTED,
    find_checkpoints,
    open_checkpoint,
    recognise,
)
from headway.checkpoints.checkpoint_info import Checkpoint, Problem, SavedTensor, Span
from headway.checkpoints.inert_pickle import load_inert
from headway.checkpoints.pickled_settings import settings_of

__all__ = [
    "SUPPORTED",
    "Checkpoint",
    "Problem",
    "SavedTensor",
    "Span",
    "find_checkpoints",
    "load_inert",
    "open_checkpoint",
    "recognise",
    "settings_of",
]
