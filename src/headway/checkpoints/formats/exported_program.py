"""`.pt2`: programs that `torch.export.save` wrote.

The weights are raw bytes, and a table in JSON says what they are; before torch 2.8 they are a
nested file of `torch.save`. The program itself is JSON too, and is not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headway.checkpoints import checkpoint_info, dtypes, nested_pickles, tensor_bytes, zip_archive
from headway.checkpoints.checkpoint_info import Checkpoint, Problem, SavedTensor
from headway.checkpoints.formats import torch_file
from headway.checkpoints.pickle_rebuild import StorageRef, TensorRef
from headway.checkpoints.pickle_values import Loaded
from headway.checkpoints.pickle_verdict import problems_of
from headway.checkpoints.tensor_naming import role_of
from headway.errors import UnreadableInput

_TABLES = ("_weights_config.json", "_constants_config.json")
_NESTED = ("serialized_state_dict.pt", "serialized_constants.pt")
MAX_TABLE = 1 << 25
_LISTED = 20
_DTYPES = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "float16", "float32"), 1)),
    **dict(enumerate(("float64", "complex32", "complex64", "complex128", "bool", "bfloat16"), 8)),
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
"""The numbers of the element types in the table."""


def is_exported(names: Iterable[str]) -> bool:
    """Whether an archive with these members is an exported program."""
    return any(name.endswith(_TABLES) or name in _NESTED for name in names)


def checkpoint(path: Path) -> Checkpoint:
    """Reads a file."""
    result = Checkpoint(path, "exported-program", checkpoint_info.step_from_name(path))
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        try:
            entries = zip_archive.read_directory(file, size)
        except zip_archive.BadZip as error:
            raise UnreadableInput(f"{path}: {error}") from error
        lost: dict[str, str] = {}
        raw: set[str] = set()
        for name, entry in entries.items():
            try:
                if name.endswith(_TABLES):
                    raw |= _add_table(path, file, entry, entries, result, lost)
                elif name in _NESTED and entry.method == zip_archive.STORED:
                    _add_nested(path, file, entry, result)
                    raw.add(name)
            except (tensor_bytes.Lost, zip_archive.BadZip) as error:
                lost[name] = str(error)
        others = list(nested_pickles.find_other_pickles(file, entries, raw, (0, size)))
    if others:
        places = tensor_bytes.StoragePlaces(path)
        opened = torch_file.OpenedPickle(
            path, "exported-program", Loaded(None, 0), places, others=others
        )
        result.problems += problems_of(opened)[0]
    if lost:
        one, why = next(iter(lost.items()))
        message = f"{path}: {len(lost)} tensors are incomplete (first: {one[:200]}): {why}"
        facts = {"lost": [n[:200] for n in list(lost)[:_LISTED]], "lost_count": len(lost)}
        result.problems.append(Problem("unreadable", message, path, facts))
    return result


def _add_nested(
    path: Path, file: BinaryIO, entry: zip_archive.ZipEntry, result: Checkpoint
) -> None:
    """The weights as `torch.save` wrote them."""
    opened = torch_file.read(path, file, start=entry.offset, size=entry.size)
    problems, unknown = problems_of(opened)
    tensors, _, facts, lost = torch_file.tensors_of(opened)
    result.tensors += tensors
    result.facts.update(facts)
    result.problems += [*problems, *lost]
    if unknown:
        result.facts.setdefault("stubbed", []).extend(unknown[:100])


def _add_table(
    path: Path,
    file: BinaryIO,
    entry: zip_archive.ZipEntry,
    entries: dict[str, zip_archive.ZipEntry],
    result: Checkpoint,
    lost: dict[str, str],
) -> set[str]:
    """The tensors of a table; returns the members that are the raw bytes of one, and no more."""
    folder = entry.name.rpartition("/")[0]
    places = tensor_bytes.StoragePlaces(path, torch_file.byte_order(file, entries))
    ends: dict[str, int] = {}
    for name, member, ref in _rows(zip_archive.read_entry(file, entry, MAX_TABLE)):
        held = entries.get(f"{folder}/{member}")
        try:
            if isinstance(ref, str):
                raise tensor_bytes.Lost(ref)
            if ref is None:
                raise tensor_bytes.Unsupported("pickled")
            if held is not None:
                packed = None if held.method == zip_archive.STORED else held.packed
                places.keys[member] = tensor_bytes.PlacedStorage(
                    path, held.offset, held.size, packed
                )
            role = role_of(name, ref.dtype)
            found: SavedTensor = tensor_bytes.locate_tensor(ref, places, name, role)
        except tensor_bytes.Lost as error:
            lost[name] = str(error)
            continue
        except tensor_bytes.Unsupported as kind:
            skipped = result.facts.setdefault("skipped", {})
            skipped[str(kind)] = skipped.get(str(kind), 0) + 1
            continue
        result.tensors.append(found)
        end = ref.offset * dtypes.SIZES[ref.dtype] + found.nbytes
        if held is not None:
            ends[held.name] = max(end, ends.get(held.name, 0))
    return {name for name, end in ends.items() if entries[name].size == end}


def _rows(data: bytes) -> Iterator[tuple[str, str, TensorRef | str | None]]:
    """(name, member, description) of each tensor. The last is None where the member is a pickle,
    and a text where the description is invalid."""
    try:
        table = json.loads(data)["config"].items()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise tensor_bytes.Lost("its table of weights is not readable") from error
    for name, row in table:
        try:
            member, meta = row["path_name"], row["tensor_meta"]
            if not isinstance(member, str):
                raise TypeError
            yield name, member, None if row.get("use_pickle") else _described(member, meta)
        except (KeyError, TypeError, AttributeError, ValueError):
            yield name, "", "its description is invalid"


def _described(member: str, meta: Any) -> TensorRef:
    sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
    offset = meta["storage_offset"]["as_int"]
    if len(sizes) != len(strides) or any(type(n) is not int for n in (*sizes, *strides, offset)):
        raise ValueError
    dtype = _DTYPES.get(meta["dtype"], f"type {meta['dtype']!s:.20}")
    reach = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    numel = max(offset + reach, 0) * dtypes.SIZES.get(dtype, 1)
    return TensorRef(StorageRef(member, None, numel), offset, tuple(sizes), tuple(strides), dtype)
