"""What a checkpoint is to a reader: named byte ranges, plain facts, and what is wrong with it.

Nothing here holds a value of a tensor. A range is measured later, a chunk at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes in a file."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Inflate:
    """The span is deflated; the tensor lies so far into what comes out."""

    skip: int
    length: int


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor of a checkpoint, and where its bytes are."""

    name: str
    role: str
    """`weight`, `buffer`, `moment` or `other`."""
    dtype: str
    shape: tuple[int, ...]
    span: Span
    stride: tuple[int, ...] | None = None
    """In elements; None: contiguous."""
    byteorder: Literal["little", "big"] = "little"
    inflate: Inflate | None = None
    parts: tuple[Part, ...] = ()
    """The pieces of a tensor that was saved by several ranks; `span` is the first one's."""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes to be read for it."""
        if self.parts:
            return sum(part.tensor.nbytes for part in self.parts)
        return self.inflate.length if self.inflate is not None else self.span.length


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a tensor, and its first index in the whole."""

    at: tuple[int, ...]
    tensor: SavedTensor


@dataclass
class Problem:
    """What is wrong with a file; becomes a finding."""

    kind: Literal["unreadable", "unsafe"]
    message: str
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Checkpoint:
    """A checkpoint that was looked through, whole or not."""

    path: Path
    """What a person would hand to torch.load or from_pretrained."""
    format: str
    step: int | None = None
    tensors: list[SavedTensor] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
