"""Runs inside a loader's workers and notes the states of their random number generators.

Both wrappers are plain objects, so that a loader that restarts its workers can pass them on. No
random number is drawn: only states are read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

BATCHES = 4
"""Number of batches after which a worker has used its random states."""


class SeedRecordingInit:
    """A loader's worker_init_fn, and then a note of the states it left."""

    def __init__(self, original: Callable[[int], Any] | None, folder: str) -> None:
        self._original = original
        self._folder = folder

    def __call__(self, worker: int) -> Any:
        result = None if self._original is None else self._original(worker)
        _note(self._folder, "first")
        return result


class SeedRecordingCollate:
    """A loader's collate_fn, and a note of the states after the first batches."""

    def __init__(self, original: Callable[[Any], Any], folder: str) -> None:
        self._original = original
        self._folder = folder
        self._batches = 0

    def __call__(self, samples: Any) -> Any:
        self._batches += 1
        if self._batches <= BATCHES:
            _note(self._folder, "later")  # before collating: what the samples have drawn
        return self._original(samples)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)


def read_notes(folder: str) -> dict[str, dict[int, tuple[str, str | None]]]:
    """State → worker → (as it began, as it was later)."""
    found: dict[str, dict[int, tuple[str, str | None]]] = {}
    for path in sorted(Path(folder).glob("first-*.json")):
        worker = int(path.stem.partition("-")[2])
        first = _read(path)
        later = _read(path.with_name(f"later-{worker}.json"))
        for name, state in first.items():
            found.setdefault(name, {})[worker] = (state, later.get(name))
    return found


def _read(path: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        held = json.loads(path.read_text(encoding="utf-8"))
        return held if isinstance(held, dict) else {}
    return {}


def _note(folder: str, when: str) -> None:
    with suppress(Exception):  # a worker must not die of being looked at
        info = get_worker_info()
        if info is not None:
            text = json.dumps(_states(info.dataset))
            Path(folder, f"{when}-{info.id}.json").write_text(text, encoding="utf-8")


def _states(dataset: Any) -> dict[str, str]:
    found = {
        "numpy": _digest(np.random.get_state()),
        "random": _digest(random.getstate()),
        "torch": _digest(torch.get_rng_state().numpy().tobytes()),
    }
    for path, value in _find_generators(dataset):
        with suppress(Exception):
            found[path] = _digest(_state_of(value))
    return found


def _find_generators(dataset: Any, path: str = "dataset", depth: int = 0) -> list[tuple[str, Any]]:
    """The generators that a data set or its parts contain."""
    found: list[tuple[str, Any]] = []
    if depth > 3:
        return found
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:100]:
        if _state_of(value) is not None:
            found.append((f"{path}.{name}", value))
        elif type(value).__module__ not in ("builtins", "numpy", "torch"):
            found += _find_generators(value, f"{path}.{name}", depth + 1)
        elif isinstance(value, (list, tuple)) and len(value) <= 20:
            for at, item in enumerate(value):
                if type(item).__module__ not in ("builtins", "numpy", "torch"):
                    found += _find_generators(item, f"{path}.{name}[{at}]", depth + 1)
    return found


def _state_of(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    return None


def _digest(state: Any) -> str:
    held = state if isinstance(state, bytes) else _text(state).encode()
    return blake2b(held, digest_size=12).hexdigest()


def _text(state: Any) -> str:
    if isinstance(state, np.ndarray):
        return str(state.tolist())
    if isinstance(state, dict):
        return str({key: _text(item) for key, item in sorted(state.items())})
    if isinstance(state, (list, tuple)):
        return str([_text(item) for item in state])
    return repr(state)
