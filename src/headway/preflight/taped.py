"""What is on a tape: ops to be run again, what they are given, and the memory it lies on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class View:
    """A tensor on memory that the tape has made."""

    number: int
    dtype: torch.dtype
    device: torch.device
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor on memory of a parameter, read as it is when the tape is played."""

    tensor: Tensor


@dataclass(slots=True)
class Held:
    """A constant."""

    tensor: Tensor
    version: int | None
    """None for a copy of ours, which nobody changes."""

    @property
    def changed(self) -> bool:
        """Whether somebody has written to it since."""
        return self.version is not None and version_of(self.tensor) != self.version


@dataclass(frozen=True, slots=True)
class Begin:
    """Memory that somebody else made, as it was before the tape wrote to it."""

    number: int
    content: Tensor
    """Its bytes."""


@dataclass(slots=True)
class Op:
    """One op to be run again."""

    func: Any
    args: Any
    kwargs: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    makes: tuple[tuple[int, int, int], ...] = ()
    """(position among the results, number, bytes) of the memory it makes."""
    random: Any = None
    """The random state to run it from."""
    mean: bool = False
    """Its result is a mean over everything it was given."""
    size: int = 0
    """How many numbers its first result has."""
    older: bool = False
    """It depends on a graph made before the tape began."""
    drawn: list[tuple[int, Tensor]] = field(default_factory=list)
    """(number, bytes) of memory it filled with drawn numbers."""


@dataclass(slots=True)
class Root:
    """Something that a backward pass began at."""

    view: View
    value: float
    end: int
    """How many entries the tape had then."""


def key_of(tensor: Tensor) -> int:
    """By what the memory of a tensor is known."""
    key: int = tensor.untyped_storage()._cdata
    return key


def bytes_of(tensor: Tensor) -> int:
    """How much memory it lies on."""
    return int(tensor.untyped_storage().nbytes())


def content_of(tensor: Tensor) -> Tensor:
    """A copy of all the memory a tensor lies on."""
    storage = tensor.untyped_storage()
    everything = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return everything.set_(storage, 0, (storage.nbytes(),), (1,)).clone()


def view_of(tensor: Tensor, number: int) -> View:
    """A tensor on the memory of that number."""
    return View(
        number,
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def version_of(tensor: Tensor) -> int | None:
    """Rises whenever it is written to; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version
