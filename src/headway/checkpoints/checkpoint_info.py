"""What a checkpoint contains: named byte ranges, facts, problems, and its step; and what a file is
that only has the name of a checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# What a checkpoint contains: named byte ranges, facts, problems, and the step it was saved at.

# What a checkpoint is to a reader: named byte ranges, plain facts, and what is wrong with it.

# Nothing here holds a value of a tensor. A range is measured later, a chunk at a time.


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
    parts: tuple[TensorPart, ...] = ()
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
class TensorPart:
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


# The step a checkpoint was made at, from what it says or from its name.

STEP_KEYS = (
    "global_step",
    "global_steps",
    "step",
    "iteration",
    "iter",
    "iter_num",
    "iters",
    "current_step",
    "train_step",
    "trainer_step",
    "num_updates",
    "n_iter",
    "it",
    "last_step",
    "steps",
    "update",
    "updates",
    "step_num",
    "step_count",
)
EPOCH_KEYS = ("epoch", "current_epoch", "epochs", "last_epoch", "epoch_num")
MAX_STEP = 1 << 53

_NAMED = (
    re.compile(r"(?:^|[^a-z])(?:global[_-]?)?steps?[=_\-.]?(\d{1,15})", re.IGNORECASE),
    re.compile(r"(?:^|[^a-z])iter(?:ation)?s?[=_\-.]?(\d{1,15})", re.IGNORECASE),
    re.compile(
        r"(?:^|[^a-z])(?:checkpoint|ckpt|chkpt|model|weights|snapshot|state|it|s|update)"
        r"[=_\-.]?(\d{1,15})(?!\d*-of-)",
        re.IGNORECASE,
    ),
    re.compile(r"(?:^|[^a-z0-9])(\d{1,15})[_-]?steps?(?:[^a-z]|$)", re.IGNORECASE),
    re.compile(r"^(\d{1,15})(?:$|\.)"),
)
_SNAPSHOT = re.compile(r"\d+-step(\d{1,15})")
"""The folder of a guarded run's snapshot."""
_EPOCH = re.compile(r"(?:^|[^a-z])ep(?:och)?s?[=_\-.]?(\d{1,9})", re.IGNORECASE)


def step_from_name(path: Path) -> int | None:
    """The step a name speaks of; an epoch where it speaks of nothing else."""
    for pattern in (*_NAMED, _EPOCH):
        found = pattern.search(path.name)
        if found is not None:
            return int(found.group(1))
    return None


def step_from_snapshot(path: Path) -> int | None:
    """The run's own step, where a file lies in a snapshot of a guarded run.

    Its moments count the updates that were applied, without those held back and rolled back.
    """
    found = _SNAPSHOT.fullmatch(path.parent.name)
    return int(found.group(1)) if found is not None else None


def step_from_content(value: Any) -> int | None:
    """The step a dict tells."""
    return _first(value, STEP_KEYS)


def epoch_from_content(value: Any) -> int | None:
    """The epoch a dict tells."""
    return _first(value, EPOCH_KEYS)


def _first(value: Any, keys: tuple[str, ...]) -> int | None:
    if not isinstance(value, dict):
        return None
    for key in keys:
        said = value.get(key)
        if isinstance(said, float) and said.is_integer():
            said = int(said)
        if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < MAX_STEP:
            return said
    for nest in ("meta", "info", "trainer_state", "train_state", "state", "progress"):
        inside = value.get(nest)
        if isinstance(inside, dict) and inside is not value:
            found = _first({key: inside[key] for key in keys if key in inside}, keys)
            if found is not None:
                return found
    return None


# Says what a file is that has a checkpoint's name but is none: a web page, a git-LFS pointer.

# A download that failed leaves a web page, a clone without git-LFS a pointer of three lines. Both
# are called `model.safetensors`, and "unknown format" helps nobody.

_POINTER = b"version https://git-lfs.github.com/spec/"
_SIZE = re.compile(rb"^size (\d{1,19})$", re.MULTILINE)
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!\x1a\x07": "RAR",
}
_OTHERS = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"GGUF": "a GGUF file",
    b"\x93NUMPY": "a single numpy array",
    b"PAR1": "a parquet file",
    b"SQLite format 3\0": "a database of SQLite",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive that neither torch.save nor numpy has written",
    b"PK\x05\x06": "an empty zip archive",
}
_SURE = (".safetensors", ".ckpt")
_SUFFIXES = (".pt", ".pth", *_SURE)
_HEAD = 512


def is_unwritten_checkpoint(path: Path) -> bool:
    """Whether a file that is no checkpoint stands where one should: named so, and never written.

    A full disk leaves an empty file, a crash of the machine one of zeros.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES or not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    return suffix in _SURE or not head.strip(b"\0") or head.startswith(_POINTER)


def describe_file(path: Path) -> str | None:
    """`an HTML page, …`; None where nothing better can be said than that it is unknown."""
    try:
        with open(path, "rb") as file:
            return describe_head(file.read(_HEAD))
    except OSError:
        return None


def describe_head(head: bytes) -> str | None:
    """The same from the first bytes."""
    if head.startswith(_POINTER):
        size = _SIZE.search(head)
        of = f" of a file of {int(size[1])} bytes" if size else ""
        return f"a git-LFS pointer{of}, not the file itself; `git lfs pull` fetches it"
    if head and not head.strip(b"\0"):
        return "nothing but zeros at its beginning: it was never written to its end"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page: the download answered with a page instead of the file"
    if start.startswith(b"<?xml"):
        return "an XML document: the download answered with a message instead of the file"
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            return f"packed with {name}; unpack it first"
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it first"
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            return name
    if start.startswith((b"{", b"[")) and _is_text(head):
        return "JSON, which holds no tensors"
    return None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # more than a character cut at the end
            return False
        text = head[: error.start].decode("utf-8")
    return bool(text) and all(char.isprintable() or char in "\t\r\n\f\x1b" for char in text)
