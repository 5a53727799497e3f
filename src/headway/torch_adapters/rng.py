"""Captures and restores the random number generators: Python's, NumPy's, torch's, every
accelerator's.

States are plain data and tensors, so that a snapshot on disk loads with `weights_only=True`.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from headway.torch_adapters.compat import accelerator_type
from headway.torch_adapters.private_parts import private_part

MT19937_BYTES = 624 * 4 + 4
"""624 words and the position among them."""
PROBE_BYTES = 64
"""The position and some words next to it. A draw moves the position, every 624th draw and every
new seed change all words: two states with one probe are the same state."""


class RngState:
    """The generators at one moment, saved at every step with little work and in memory only."""

    __slots__ = ("_cuda", "_numpy", "_other", "_python", "_torch")

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: NumPy's spare normal number too, which its memory does not show."""
        global _numpy_known
        if exact:
            _numpy_known = None
        self._python = _pythons()
        self._torch = torch.get_rng_state()
        self._numpy = _numpys() if "numpy" in sys.modules else None
        started = torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
        self._cuda = torch.cuda.get_rng_state_all() if started else None
        self._other = _states_of_other() if other_accelerator() is not None else None

    def restore(self) -> None:
        """Let every generator go on from here."""
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        _restore_other(self._other)

    def follows(self, begin: RngState, end: RngState) -> bool:
        """Whether what was drawn from `begin` to here may be what was drawn until `end`.

        A generator that nothing was drawn from shows nothing: its state did not matter.
        """
        states = zip(self._states(), begin._states(), end._states(), strict=False)
        return all(_alike(now, first) or _alike(now, last) for now, first, last in states)

    def _states(self) -> list[Any]:
        return [self._python, self._torch, self._numpy, *(self._cuda or ()), *(self._other or ())]

    def to_state(self) -> dict[str, Any]:
        """As `capture` gives it: plain data and tensors."""
        now = RngState(exact=True)
        self.restore()
        try:
            return capture()
        finally:
            now.restore()


_python_known: tuple[bytes, Any, Any] | None = None
"""The probe of Python's generator, its spare normal number and its state when last asked: the
state is a tuple of 625 integers, and few trainings draw from it at every step."""


def _pythons() -> Any:
    global _python_known
    generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
    if _read_memory is None or not _python_memory_is_known():
        return random.getstate()
    memory = _read_memory(id(generator) + object.__basicsize__, PROBE_BYTES)
    known, spare = _python_known, generator.gauss_next
    if known is None or known[0] != memory or known[1] != spare:
        known = _python_known = (memory, spare, random.getstate())
    return known[2]


@cache
def _python_memory_is_known() -> bool:
    """Whether this interpreter keeps the position and the 624 words right behind the object."""
    if _read_memory is None or type(random.getstate.__self__) is not random.Random:  # type: ignore[attr-defined]
        return False
    other = random.Random(5)
    other.random()
    _, words, _ = other.getstate()
    expected = struct.pack("@i624I", words[-1], *words[:-1])
    return _read_memory(id(other) + object.__basicsize__, MT19937_BYTES) == expected


_read_memory: Callable[[int, int], bytes] | None = private_part(
    "ctypes.string_at",
    None,
    without="NumPy is asked for its random state at every step, which takes longer",
)
_numpy_known: tuple[Any, int, bytes, Any] | None = None
"""NumPy's bit generator, the address of its probe, the probe and the state when last asked:
asking takes longer than all the others together, and few trainings draw from it at every step."""


def _numpys() -> Any:
    global _numpy_known
    numpy = sys.modules["numpy"]
    singleton = getattr(numpy.random.mtrand, "_rand", None)
    generator: Any = getattr(singleton, "_bit_generator", None)
    if type(generator).__name__ != "MT19937" or _read_memory is None:
        return numpy.random.get_state(legacy=False)
    known = _numpy_known if _numpy_known is not None and _numpy_known[0] is generator else None
    if known is None:  # the position comes after the words
        address = generator.ctypes.state_address + MT19937_BYTES - PROBE_BYTES
    else:
        address = known[1]
    memory = _read_memory(address, PROBE_BYTES)
    if known is None or known[2] != memory:
        known = (generator, address, memory, numpy.random.get_state(legacy=False))
        _numpy_known = known
    return known[3]


def _alike(one: Any, other: Any) -> bool:
    """Whether two states of one generator are the same."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):  # NumPy's, with its words in an array
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def capture() -> dict[str, Any]:
    """The state of every generator in use."""
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
    others = _states_of_other()
    if others is not None:
        state["accelerator"] = others
    return state


def is_valid_state(state: Any) -> bool:
    """Whether a state, perhaps from a file, can be restored; the generators stay as they are."""
    now = capture()
    try:
        restore(state)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError):
        return False
    finally:
        restore(now)
    return True


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
    _restore_other(state.get("accelerator"))


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


# Accelerators other than CUDA and ROCm, which torch both calls "cuda": XPU, MPS and others.


@cache
def other_accelerator() -> Any:
    """The module of torch for this accelerator, such as `torch.xpu`; None if there is none, or if
    its generators cannot be read.
    """
    kind = accelerator_type()
    if kind in ("cpu", "cuda"):
        return None
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:  # a device that torch does not know
        return None
    readable = hasattr(module, "get_rng_state") and hasattr(module, "set_rng_state")
    return module if readable else None


def _states_of_other() -> list[torch.Tensor] | None:
    module = other_accelerator()
    if module is None:
        return None
    if hasattr(module, "get_rng_state_all"):
        return list(module.get_rng_state_all())
    return [module.get_rng_state()]


def _restore_other(states: list[torch.Tensor] | None) -> None:
    module = other_accelerator()
    if module is None or states is None:
        return
    if hasattr(module, "set_rng_state_all"):
        module.set_rng_state_all(states)
    else:
        module.set_rng_state(states[0])
