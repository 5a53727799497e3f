"""What a checkpoint contains: named byte ranges, facts, problems, and its step; and what a file is
that only has the name of a checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.checkpoints.folder_access import is_own_file
from headway.errors import UnreadableInput

# What a checkpoint contains: named byte ranges, facts, problems, and the step it was saved at.

# No value of a tensor is stored here: ranges are measured later, in chunks.


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes in a file."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Inflate:
    """The span is compressed; the tensor is this range of the decompressed bytes."""

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
    """In elements; None if contiguous."""
    byteorder: Literal["little", "big"] = "little"
    inflate: Inflate | None = None
    parts: tuple[TensorPart, ...] = ()
    """The parts of a tensor that several ranks saved; `span` is that of the first one."""

    @property
    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        if self.parts:
            return sum(part.tensor.nbytes for part in self.parts)
        return self.inflate.length if self.inflate is not None else self.span.length


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A part of a tensor, and its first index in the whole."""

    at: tuple[int, ...]
    tensor: SavedTensor


class NotJudged(UnreadableInput):
    """A file that reaches a limit before it is read to its end: it may contain anything."""


@dataclass
class Problem:
    """A problem of a file; becomes a finding."""

    kind: Literal["unreadable", "unsafe", "unknown"]
    """`unknown`: its pickle names code that is not on the allowlist."""
    message: str
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)


def unknown_code(names: list[str], path: Path, where: str) -> list[Problem]:
    """The problem of a pickle with names that are not on the allowlist."""
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    shown = ", ".join(name[:200] for name in names[:3])
    message = f"{where} refers to code that is not on the allowlist: {shown}{more}"
    return [Problem("unknown", message, path, {"globals": [name[:200] for name in names[:100]]})]


@dataclass
class Checkpoint:
    """An opened checkpoint, complete or not."""

    path: Path
    """The path to pass to torch.load or from_pretrained."""
    format: str
    step: int | None = None
    tensors: list[SavedTensor] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


# The step of a checkpoint, from its content or its name.

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
"""Folder of a snapshot of a guarded run."""
_EPOCH = re.compile(r"(?:^|[^a-z])ep(?:och)?s?[=_\-.]?(\d{1,9})", re.IGNORECASE)


def step_from_name(path: Path) -> int | None:
    """The step in a file name, or else the epoch."""
    for pattern in (*_NAMED, _EPOCH):
        found = pattern.search(path.name)
        if found is not None:
            return int(found.group(1))
    return None


def step_from_snapshot(path: Path) -> int | None:
    """The step of the run, if the file is in a snapshot of a guarded run.

    The optimizer in it counts only applied updates, without skipped and rolled back ones.
    """
    found = _SNAPSHOT.fullmatch(path.parent.name)
    return int(found.group(1)) if found is not None else None


def step_from_content(value: Any) -> int | None:
    """The step in a dict."""
    return _first(value, STEP_KEYS)


def epoch_from_content(value: Any) -> int | None:
    """The epoch in a dict."""
    return _first(value, EPOCH_KEYS)


def _first(value: Any, keys: tuple[str, ...]) -> int | None:
    if not isinstance(value, dict):
        return None
    for key in keys:
        found = value.get(key)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < MAX_STEP:
            return found
    for nest in ("meta", "info", "trainer_state", "train_state", "state", "progress"):
        inside = value.get(nest)
        if isinstance(inside, dict) and inside is not value:
            step = _first({key: inside[key] for key in keys if key in inside}, keys)
            if step is not None:
                return step
    return None


# Files that only have the name of a checkpoint. A failed download leaves a web page, a clone
# without git-LFS a pointer of three lines; both are called `model.safetensors`.

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
    b"SQLite format 3\0": "an SQLite database",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive that was not written by torch.save or numpy",
    b"PK\x05\x06": "an empty zip archive",
}
_BY_NAME = {
    ".onnx": "an ONNX model",
    ".keras": "a Keras model",
    ".tflite": "a TensorFlow Lite model",
    ".msgpack": "a msgpack file, as Flax writes it",
    ".mlmodel": "a Core ML model",
}
"""Formats whose first bytes do not tell them from others."""
_JSON = "JSON, which contains no tensors"
_SURE = (".safetensors", ".ckpt")
_SUFFIXES = (".pt", ".pth", *_SURE)
_HEAD = 512


def is_unwritten_checkpoint(path: Path) -> bool:
    """Whether a file has the name of a checkpoint but was never written, or is something else.

    A full disk leaves an empty file, a crash of the machine one of zeros, a failed download a page.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES or not is_own_file(path):
        return False
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if suffix in _SURE or not head.strip(b"\0") or describe_head(head) not in (None, _JSON):
        return True
    # Other libraries keep texts, and pickles and archives without tensors, under these names.
    return not (_is_text(head) or head.startswith((b"\x80", b"PK")))


def describe_file(path: Path) -> str | None:
    """`an HTML page, …`; None if it is unknown."""
    try:
        with open(path, "rb") as file:
            return _BY_NAME.get(path.suffix.lower()) or describe_head(file.read(_HEAD))
    except OSError:
        return None


def describe_head(head: bytes) -> str | None:
    """The same, from the first bytes."""
    if head.startswith(_POINTER):
        size = _SIZE.search(head)
        of = f" of a file of {int(size[1])} bytes" if size else ""
        return f"a git-LFS pointer{of}, not the file itself; `git lfs pull` fetches it"
    if head and not head.strip(b"\0"):
        return "a file of zeros: it was never completely written"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page: the download returned a page instead of the file"
    if start.startswith(b"<?xml"):
        return "an XML document: the download returned a message instead of the file"
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            return f"compressed with {name}; decompress it first"
    if head[:1] == b"\x78" and head[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        return "compressed with zlib, as joblib does it; save it without compression"
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it first"
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            return name
    if start.startswith((b"{", b"[")) and _is_text(head):
        return _JSON
    return None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # not only a character cut off at the end
            return False
        text = head[: error.start].decode("utf-8")
    return bool(text) and all(char.isprintable() or char in "\t\r\n\f\x1b" for char in text)
