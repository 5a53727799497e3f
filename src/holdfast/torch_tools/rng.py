"""The random number generators of a training: Python's, NumPy's, torch's, every CUDA device's.

States are plain data and tensors, so that a snapshot on disk loads with `weights_only=True`.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The state of every generator that is in use."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        # int64: not every torch can save a uint32
        words = torch.tensor(keys.tolist(), dtype=torch.int64)
        state["numpy"] = [str(name), words, int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """Let every generator go on from a captured state."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        name, words, position, has_gauss, cached = state["numpy"]
        keys = numpy.array(words.tolist(), dtype=numpy.uint32)
        numpy.random.set_state((name, keys, position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        for device in range(min(torch.cuda.device_count(), len(state["cuda"]))):
            torch.cuda.set_rng_state(state["cuda"][device], device)
