"""safetensors: a length, a JSON header, then the tensors. One file, or several with an index."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

from headway.checkpoints import checkpoint_info, dtypes, tensor_bytes
from headway.checkpoints.checkpoint_info import (
    Checkpoint,
    Problem,
    SavedTensor,
    Span,
    describe_file,
)
from headway.checkpoints.tensor_naming import role_of

MAX_HEADER = 100_000_000
MAX_INDEX = 1 << 28
_LISTED = 20
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Types of the format whose elements are not measured, and the bits of an element."""


def recognised(head: bytes, size: int) -> bool:
    """Whether the first bytes are a header length and the start of its JSON."""
    if len(head) < 9:
        return False
    length = struct.unpack_from("<Q", head)[0]
    text = head[8:].lstrip(b" \t\r\n")  # the library accepts them before the header
    return text[:1] in (b"{", b"") and 2 <= length <= MAX_HEADER


def read(path: Path) -> tuple[list[SavedTensor], dict[str, Any], list[Problem]]:
    """(tensors, metadata, problems)."""

    def broken(what: str, **facts: Any) -> tuple[list[SavedTensor], dict[str, Any], list[Problem]]:
        return [], {}, [Problem("unreadable", f"{path}: {what}", path, facts)]

    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(8)
        if len(head) < 8:
            return broken(f"it has {size} bytes, a header needs at least 8")
        length = struct.unpack("<Q", head)[0]
        if length > MAX_HEADER and (what := describe_file(path)) is not None:
            return broken(f"it is {what}")
        if length > MAX_HEADER:
            return broken(f"its header says {length} bytes (limit {MAX_HEADER})")
        if 8 + length > size:
            missing = 8 + length - size
            return broken(
                f"truncated in its header: {missing} bytes of at least {8 + length} are missing",
                bytes=size,
                missing_bytes=missing,
            )
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_int=_integer)
        json.dumps(header, ensure_ascii=False).encode("utf-8")  # half a character is no text
    except _TwiceNamed as error:
        return broken(f"its header has two entries called {str(error)[:200]!r}")
    except (ValueError, RecursionError):
        return broken("its header is not JSON")
    if not isinstance(header, dict):
        return broken("its header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not _is_text_table(metadata):
        return broken("its __metadata__ is not a table of texts")
    facts = {"metadata": _plain(metadata)} if isinstance(metadata, dict) and metadata else {}
    return _tensors(path, header, 8 + length, size, facts)


def _tensors(
    path: Path, header: dict[str, Any], base: int, size: int, facts: dict[str, Any]
) -> tuple[list[SavedTensor], dict[str, Any], list[Problem]]:
    found: list[SavedTensor] = []
    wrong: dict[str, str] = {}
    lost: list[str] = []
    skipped: dict[str, int] = {}
    expected = base
    for name, entry in header.items():
        try:
            dtype, shape, begin, end = _entry(entry)
            count = tensor_bytes.size_of(shape)
        except (tensor_bytes.Lost, ValueError, TypeError, KeyError) as error:
            wrong[name] = str(error) or "its entry is invalid"
            continue
        kind = dtypes.SAFETENSORS.get(dtype)
        expected = max(expected, base + end)
        if kind is None and dtype in _BITS:
            if 8 * (end - begin) != count * _BITS[dtype]:
                wrong[name] = f"{end - begin} bytes for {count} elements of {dtype}"
            skipped[dtype] = skipped.get(dtype, 0) + 1
        elif kind is None:
            wrong[name] = f"unknown dtype {dtype[:20]!r}"
        elif end - begin != count * dtypes.SIZES[kind]:
            wrong[name] = f"{end - begin} bytes for {count} elements of {kind}"
        elif base + end > size:
            lost.append(name)
        else:
            span = Span(path, base + begin, end - begin)
            found.append(SavedTensor(name, role_of(name, kind), kind, shape, span))
    problems: list[Problem] = []
    if expected > size:
        some = f" (first: {lost[0]})" if lost else ""
        problems.append(
            Problem(
                "unreadable",
                f"{path} is truncated: {expected - size} bytes of {expected} are missing, and with "
                f"them {len(lost)} of {len(header)} tensors{some}",
                path,
                {
                    "bytes": size,
                    "missing_bytes": expected - size,
                    "lost": lost[:_LISTED],
                    "lost_count": len(lost),
                    "whole": len(found),
                },
            )
        )
    if wrong:
        name, why = next(iter(wrong.items()))
        problems.append(
            Problem(
                "unreadable",
                f"{path}: its header is invalid for {len(wrong)} tensors; {name[:200]}: {why}",
                path,
                {"lost": [key[:200] for key in list(wrong)[:_LISTED]], "lost_count": len(wrong)},
            )
        )
    overlap = _overlap(found)
    if overlap is not None:
        message = f"{path}: {overlap[0]} and {overlap[1]} have the same bytes"
        problems.append(Problem("unreadable", message, path, {"overlap": list(overlap)}))
    if skipped:
        facts["skipped"] = skipped
    if not problems and (gap := _gap(header, base, size)) is not None:
        problems.append(Problem("unreadable", f"{path}: {gap}", path, {"bytes": size}))
    return found, facts, problems


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, end]
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("its shape or offsets are not integers")
    if end < begin:
        raise ValueError(f"it ends at byte {end}, before its start ({begin})")
    return dtype, tuple(shape), begin, end


def _overlap(tensors: list[SavedTensor]) -> tuple[str, str] | None:
    spans = sorted((t.span.offset, t.span.length, t.name) for t in tensors if t.span.length)
    for (a, length, name), (b, _, other) in itertools.pairwise(spans):
        if a + length > b:
            return name, other
    return None


def _gap(header: dict[str, Any], base: int, size: int) -> str | None:
    """Bytes that belong to no tensor: the library refuses such a file."""
    at = 0
    for begin, end in sorted(tuple(entry["data_offsets"]) for entry in header.values()):
        if begin != at:
            return f"the {begin - at} bytes after byte {base + at} belong to no tensor"
        at = end
    if base + at != size:
        return f"the {size - base - at} bytes after its last tensor belong to no tensor"
    return None


class _TwiceNamed(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceNamed(key)
        found[key] = value
    return found


def _integer(text: str) -> int | float:
    """The library takes -0 for a float."""
    return float(text) if text == "-0" else int(text)


def _is_text_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _plain(metadata: dict[Any, Any]) -> dict[str, str]:
    return {str(k)[:100]: str(v)[:200] for k, v in list(metadata.items())[:50]}


def checkpoint(path: Path) -> Checkpoint:
    """Reads a file."""
    tensors, facts, problems = read(path)
    step = None
    for key, value in (facts.get("metadata") or {}).items():
        if key in checkpoint_info.STEP_KEYS and value.isdigit() and len(value) < 16:
            step = int(value)
    step = checkpoint_info.step_from_name(path) if step is None else step
    return Checkpoint(path, "safetensors", step, tensors, facts, problems)


def index_of(path: Path) -> dict[str, str] | None:
    """The weight map of an index; None if it is not an index."""
    try:
        if path.stat().st_size > MAX_INDEX:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        return None
    if not all(isinstance(value, str) for value in names.values()):
        return None
    return names
