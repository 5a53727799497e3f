"""Checkpoints read without torch, and without running a byte of them.

`recognise` tells a format by content, `open_checkpoint` names every tensor and its byte range, and
what is wrong; `records` measures the tensors, as a stream for the checks.
"""

from __future__ import annotations

from headway.checkpoints.finding import find_checkpoints
from headway.checkpoints.inert import load_inert
from headway.checkpoints.model import Checkpoint, Problem, SavedTensor, Span
from headway.checkpoints.opening import SUPPORTED, open_checkpoint, recognise
from headway.checkpoints.settings import settings_of

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
