"""Says what a file is that has a checkpoint's name but is none: a web page, a git-LFS pointer.

A download that failed leaves a web page, a clone without git-LFS a pointer of three lines. Both are
called `model.safetensors`, and "unknown format" helps nobody.
"""

from __future__ import annotations

import re
from pathlib import Path

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
