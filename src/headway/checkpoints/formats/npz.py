"""`.npz`: a zip archive of numpy arrays. Arrays of objects are interpreted, never unpickled."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, Literal

from headway.checkpoints import (
    checkpoint_info,
    dtypes,
    inert_pickle,
    nested_pickles,
    tensor_bytes,
    zip_archive,
)
from headway.checkpoints.checkpoint_info import Checkpoint, Inflate, Problem, SavedTensor, Span
from headway.checkpoints.formats import torch_file
from headway.checkpoints.pickle_values import Loaded
from headway.checkpoints.pickle_verdict import judge_pickle, problems_of
from headway.checkpoints.tensor_naming import role_of
from headway.errors import UnreadableInput

MAX_ENTRIES = 200_000


class _NoArray(Exception):
    pass


def checkpoint(path: Path) -> Checkpoint:
    """Reads a file."""
    result = Checkpoint(path, "npz", checkpoint_info.step_from_name(path))
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        try:
            entries = list(zip_archive.read_directory(file, size).values())
        except zip_archive.BadZip as error:
            entries = _recover(file, size)
            message = f"{path}: {error}; {len(entries)} arrays are complete"
            result.problems.append(
                Problem("unreadable", message, path, {"bytes": size, "whole": len(entries)})
            )
        if len(entries) > MAX_ENTRIES:
            raise UnreadableInput(
                f"{path} was not judged: {len(entries)} arrays (limit {MAX_ENTRIES})"
            )
        notes = {e.name: e for e in entries if not _is_array(file, e)}
        others = list(nested_pickles.find_other_pickles(file, notes, (), (0, size)))
        if others:
            places = tensor_bytes.StoragePlaces(path)
            opened = torch_file.OpenedPickle(path, "npz", Loaded(None, 0), places, others=others)
            result.problems += problems_of(opened)[0]
        for entry in entries:
            if entry.name in notes:
                continue
            try:
                _add(path, file, entry, result)
            except (_NoArray, zip_archive.BadZip, tensor_bytes.Lost) as error:
                message = f"{path}: array {entry.name[:200]!r}: {error}"
                result.problems.append(
                    Problem("unreadable", message, path, {"lost": [entry.name[:200]]})
                )
    for key in ("step", "global_step", "iteration"):
        found = next((t for t in result.tensors if t.name == key and t.numel == 1), None)
        if found is not None and found.inflate is None and found.dtype in ("int64", "int32"):
            with open(path, "rb") as file:
                file.seek(found.span.offset)
                value = int.from_bytes(file.read(found.span.length), "little", signed=True)
            if 0 <= value < checkpoint_info.MAX_STEP:
                result.step = value
    return result


def _add(path: Path, file: BinaryIO, entry: zip_archive.ZipEntry, result: Checkpoint) -> None:
    name = entry.name.removesuffix(".npy")
    head, body = _header(file, entry)
    code, shape, fortran = head["descr"], head["shape"], bool(head["fortran_order"])
    if not isinstance(shape, tuple) or not all(type(n) is int for n in shape):
        raise _NoArray("its shape is not a tuple of integers")
    if nested_pickles.has_objects(code):
        _objects(path, file, entry, body, result)
        return
    kind = dtypes.of_numpy(code) if isinstance(code, str) else None
    if kind is None:
        skipped = result.facts.setdefault("skipped", {})
        skipped[str(code)[:40]] = skipped.get(str(code)[:40], 0) + 1
        return
    length = tensor_bytes.size_of(shape) * dtypes.SIZES[kind]
    if body + length > entry.size:
        raise _NoArray(f"{entry.size - body} bytes for a shape that needs {length}")
    stride = None
    if fortran and len(shape) > 1:
        steps_, step = [], 1
        for size in shape:
            steps_.append(step)
            step *= size
        stride = tuple(steps_)
    order: Literal["little", "big"] = "big" if code.startswith(">") else "little"
    inflate = None
    if entry.method == zip_archive.STORED:
        span = Span(path, entry.offset + body, length)
    else:
        span = Span(path, entry.offset, entry.packed)
        inflate = Inflate(body, length)
    role = role_of(name, kind)
    result.tensors.append(SavedTensor(name, role, kind, shape, span, stride, order, inflate))


def _is_array(file: BinaryIO, entry: zip_archive.ZipEntry) -> bool:
    """By its ending or its first bytes: numpy looks at the first bytes only."""
    if entry.name.endswith(".npy"):
        return True
    try:
        first = next(zip_archive.entry_chunks(file, entry, 64), b"")
    except zip_archive.BadZip:
        return False
    return first.startswith(nested_pickles.NUMPY)


def _header(file: BinaryIO, entry: zip_archive.ZipEntry) -> tuple[dict[str, Any], int]:
    """(header of an array, its length in bytes)."""
    data = b""
    for chunk in zip_archive.entry_chunks(file, entry, 4096):
        data += chunk
        if len(data) >= nested_pickles.MAX_HEADER + 12:
            break
    found = nested_pickles.array_header(data)
    if isinstance(found, str):
        raise _NoArray(found)
    return found


def _objects(
    path: Path, file: BinaryIO, entry: zip_archive.ZipEntry, body: int, result: Checkpoint
) -> None:
    """Judges the pickle of an array of objects."""
    data = zip_archive.read_entry(file, entry, inert_pickle.MAX_PICKLE)
    loaded = inert_pickle.load(data[body:])
    dangerous, unknown = judge_pickle(loaded)
    name = entry.name.removesuffix(".npy")[:200]
    where = f"{path}: array {name!r}"
    if loaded.damage is not None:
        message = f"{where} is a pickle that was not judged: {loaded.damage}"
        result.problems.append(Problem("unreadable", message, path, {"lost": [name]}))
    result.problems += checkpoint_info.unknown_code(unknown, path, where)
    result.facts.setdefault("pickled_arrays", []).append(name)
    if unknown:
        result.facts.setdefault("stubbed", []).extend(unknown[:100])
    if dangerous:
        calls = ", ".join(f"{key}({value})" for key, value in list(dangerous.items())[:3])
        result.problems.append(
            Problem(
                "unsafe",
                f"{where} would run code when it is loaded (allow_pickle): {calls}",
                path,
                {"globals": list(dangerous)[:100]},
            )
        )


def _recover(file: BinaryIO, size: int) -> list[zip_archive.ZipEntry]:
    """The complete entries of an archive without a directory."""
    found: list[zip_archive.ZipEntry] = []
    at = 0
    while (header := zip_archive.local_name(file, at)) is not None and len(found) < MAX_ENTRIES:
        name, data = header
        file.seek(at)
        local = file.read(data - at)
        flags, method = struct.unpack_from("<HH", local, 6)
        packed, full = struct.unpack_from("<II", local, 18)
        names = struct.unpack_from("<H", local, 26)[0]
        full, packed, _ = zip_archive._wide(local[30 + names :], full, packed, 0)
        if flags & 8 or data + packed > size:
            break
        if not zip_archive.is_bomb(method, packed, full):
            found.append(zip_archive.ZipEntry(name, method, data, packed, full))
        at = data + packed
    return found
