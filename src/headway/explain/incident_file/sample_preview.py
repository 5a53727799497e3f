"""Previews of the failing samples, for people: text, pictures, numbers; a few and small ones.

A page shows them next to the incident, so they are stored as plain JSON with pictures as PNG: a
page loads no tensors and runs no tokenizer.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.core.numbers import say
from headway.explain.incident_file.packing import format_path, items_of, leading_size
from headway.torch_adapters.nested_state import StatePath

MAX_SAMPLES = 4
MAX_PARTS = 8
"""Parts of a sample that are shown: its image, its target, and so on."""
MAX_CHARACTERS = 2000
MAX_TOKENS = 1024
MAX_VALUES = 8
MAX_PIXELS = 160
"""Pixels of the longer side of a picture; a larger one is reduced."""
LEAST_PIXELS = 8
MAX_PICTURE_BYTES = 48 << 10
DEEPEST = 4
CHANNELS = (1, 3, 4)
BAD_PIXEL = (255, 0, 255)
"""Where a value is not finite."""
IGNORED_LABEL = -100
"""Marks tokens without a target; a tokenizer does not know it."""
TOKEN_NAMES = ("input_ids", "labels", "tokens", "ids", "decoder_input_ids", "targets")

Decode = Callable[[Sequence[int]], str]


def preview_samples(
    batches: Sequence[Any],
    rows: Mapping[int, Sequence[int]],
    names: Sequence[Any] = (),
    decode: Decode | None = None,
) -> list[dict[str, Any]]:
    """The failing rows of the batches; `names`: their indices in the data set, in that order."""
    found: list[dict[str, Any]] = []
    known = [(batch, row) for batch in sorted(rows) for row in rows[batch]]
    for at, (number, row) in enumerate(known[:MAX_SAMPLES]):
        batch = batches[number]
        size = leading_size(batch)
        if size is None or not 0 <= row < size:
            continue
        parts = list(_take(_parts(batch, size, row, decode), MAX_PARTS))
        if parts:
            name = str(names[at])[:80] if at < len(names) else ""
            found.append({"batch": number, "row": row, "sample": name, "parts": parts})
    return found


def find_decoder(sources: Iterable[Any]) -> Decode | None:
    """The tokenizer of a trainer, or of a loader: of its collate function or of its data set."""
    for source in sources:
        for holder in _holders(source):
            for name in ("tokenizer", "processing_class", "processor"):
                decode = getattr(getattr(holder, name, None), "decode", None)
                if callable(decode):
                    return partial(_decode, decode)
    return None


def _holders(source: Any) -> Iterator[Any]:
    """Objects that may have a tokenizer."""
    waiting = [source, getattr(source, "collate_fn", None), getattr(source, "dataset", None)]
    seen: set[int] = set()
    while waiting and len(seen) < 20:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, partial):  # partial(collate, tokenizer=…)
            yield _Named(one.keywords)
            waiting.append(one.func)
        code, cells = getattr(one, "__code__", None), getattr(one, "__closure__", None)
        if code is not None and cells:  # a function that uses a tokenizer of its surroundings
            yield _Named(dict(zip(code.co_freevars, _contents(cells), strict=False)))
        names = ("__self__", "data_collator", "dataset", "collator")
        waiting += [getattr(one, name, None) for name in names]


class _Named:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)


def _contents(cells: Iterable[Any]) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None


def _decode(decode: Callable[[Sequence[int]], Any], ids: Sequence[int]) -> str:
    return str(decode([one for one in ids if one != IGNORED_LABEL]))


def _take(parts: Iterator[dict[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    for _, part in zip(range(most), parts, strict=False):
        yield part


def _parts(batch: Any, size: int, row: int, decode: Decode | None) -> Iterator[dict[str, Any]]:
    for path, value in _values(batch, size, row, ()):
        part = _part(path, value, decode)
        if part is not None:
            yield {"name": format_path(path), **part}


def _values(value: Any, size: int, row: int, path: StatePath) -> Iterator[tuple[StatePath, Any]]:
    """What a batch contains of one sample, with its place in the batch."""
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim and len(value) == size:
            yield path, torch.as_tensor(value[row]).detach()
        return
    if isinstance(value, (list, tuple)) and len(value) == size and path:
        simple = (str, int, float, Tensor, np.ndarray)
        if all(isinstance(item, simple) for item in value):
            one = value[row]
            yield path, torch.as_tensor(one).detach() if isinstance(one, np.ndarray) else one
            return
    items = items_of(value) if len(path) < DEEPEST else None
    for key, item in items or ():
        yield from _values(item, size, row, (*path, key))


def _part(path: StatePath, value: Any, decode: Decode | None) -> dict[str, Any] | None:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return {"kind": "numbers", "text": say(float(value), 6)}
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_complex():
        return None
    plain = value.as_subclass(Tensor).cpu()
    if decode is not None and _is_tokens(path, plain):
        try:
            return {"tokens": len(plain), **_text(decode(plain[:MAX_TOKENS].tolist()))}
        except Exception:  # the user's tokenizer: ids beyond its vocabulary, and so on
            pass
    pixels = _pixels(plain)
    if pixels is not None:
        picture = _picture(pixels)
        if picture is not None:
            return picture
    return _numbers(plain)


def _text(value: str) -> dict[str, Any]:
    return {"kind": "text", "text": value[:MAX_CHARACTERS], "cut": len(value) > MAX_CHARACTERS}


def _is_tokens(path: StatePath, value: Tensor) -> bool:
    whole = not value.is_floating_point() and value.dtype is not torch.bool
    named = not path or not isinstance(path[-1], str) or path[-1] in TOKEN_NAMES
    return whole and named and value.ndim == 1 and len(value) > 1


def _numbers(value: Tensor) -> dict[str, Any]:
    flat = value.reshape(-1)
    shape = " × ".join(map(str, value.shape)) or "one number"
    first = ", ".join(say(float(one), 4) for one in flat[:MAX_VALUES].tolist())
    more = ", …" if len(flat) > MAX_VALUES else ""
    bad = int((~torch.isfinite(flat)).sum()) if flat.is_floating_point() else 0
    return {
        "kind": "numbers",
        "text": first + more,
        "about": f"{shape}, {str(value.dtype).removeprefix('torch.')}",
        "bad": bad,
    }


# Pictures.


def _pixels(value: Tensor) -> Tensor | None:
    """Height × width × channels, if a tensor has the shape of a picture."""
    if value.ndim == 3 and value.shape[0] in CHANNELS:
        value = value.movedim(0, -1)
    elif value.ndim == 2 and value.dtype is torch.uint8:
        value = value.unsqueeze(-1)
    if value.ndim != 3 or value.shape[-1] not in CHANNELS or min(value.shape[:2]) < LEAST_PIXELS:
        return None
    return value if value.dtype is torch.uint8 or value.is_floating_point() else None


def _picture(pixels: Tensor) -> dict[str, Any] | None:
    height, width, channels = pixels.shape
    step = max(-(-max(height, width) // MAX_PIXELS), 1)
    reduced = pixels[::step, ::step, : 3 if channels > 1 else 1]
    about = f"{height} × {width} × {channels}, {str(pixels.dtype).removeprefix('torch.')}"
    bad = 0
    if reduced.dtype is not torch.uint8:
        finite = torch.isfinite(reduced)
        bad = int((~torch.isfinite(pixels)).sum())
        known = reduced[finite].double()
        if not len(known):
            return None
        low, high = float(known.min()), float(known.max())
        if low < 0 or high > 1:
            about += f", scaled from {say(low)} … {say(high)}"
        else:
            low, high = 0.0, 1.0
        scaled = (reduced.double() - low) / max(high - low, 1e-12) * 255
        shown = torch.where(finite, scaled, 0.0).round().clamp(0, 255).to(torch.uint8)
        shown = shown.expand(*shown.shape[:2], 3).contiguous()
        shown[(~finite).any(dim=-1)] = torch.tensor(BAD_PIXEL, dtype=torch.uint8)
    else:
        shown = reduced.expand(*reduced.shape[:2], 3).contiguous()
    png = _png(shown)
    if len(png) > MAX_PICTURE_BYTES:
        return None if min(shown.shape[:2]) <= 2 * LEAST_PIXELS else _picture(pixels[::2, ::2])
    data = base64.b64encode(png).decode()
    return {"kind": "image", "png": data, "about": about, "bad": bad}


def _png(pixels: Tensor) -> bytes:
    """Height × width × 3 bytes as a PNG file."""
    height, width, _ = pixels.shape
    rows = pixels.numpy().reshape(height, width * 3)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )
