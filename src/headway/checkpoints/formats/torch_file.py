"""Files of `torch.save` and `torch.jit.save`, and plain pickles of arrays.

The pickle describes the tensors; their storages are entries of a zip archive, or follow the pickle.
A truncated archive has no directory: its entries are found one after the other, with the lengths
from the pickle.
"""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from headway.checkpoints import (
    checkpoint_info,
    inert_pickle,
    nested_pickles,
    tensor_bytes,
    zip_archive,
)
from headway.checkpoints.checkpoint_info import Checkpoint, NotJudged, Problem, SavedTensor
from headway.checkpoints.folder_access import read_once
from headway.checkpoints.formats.torch_legacy import PickleStream, read_stream, root_of, storage_of
from headway.checkpoints.nested_pickles import PickleMember
from headway.checkpoints.pickle_rebuild import StorageRef, TensorRef
from headway.checkpoints.pickle_values import Loaded, short_text
from headway.checkpoints.pickle_verdict import LISTED, judge_pickle, problems_of
from headway.checkpoints.tensor_bytes import PlacedStorage, StoragePlaces
from headway.checkpoints.tensor_naming import TensorWalk, moment_names, read_step_counter

_KEY = re.compile(r"^(?:[^/]*/)?(?:data|constants)/([^/]+)$")


@dataclass
class OpenedPickle:
    """An interpreted pickle with the places of its storages."""

    path: Path
    format: str
    loaded: Loaded
    places: StoragePlaces
    problems: list[Problem] = field(default_factory=list)
    missing: int = 0
    """Missing bytes of a truncated file."""
    main: str = ""
    """The archive member that `torch.load` reads."""
    others: list[PickleMember] = field(default_factory=list)
    """Further pickles in the archive."""

    @property
    def value(self) -> Any:
        """The root object."""
        return self.loaded.value


def read(path: Path, file: BinaryIO, *, start: int = 0, size: int | None = None) -> OpenedPickle:
    """Reads a file, or `size` bytes of it."""
    if size is not None:
        return _read(path, file, start, size)
    opened = read_once(
        path, lambda: _read(path, file, 0, file.seek(0, 2)), lambda made: made.loaded.not_judged
    )
    # It may have been read before: what is changed below belongs to one reading.
    problems = [replace(problem, facts=dict(problem.facts)) for problem in opened.problems]
    return replace(opened, loaded=replace(opened.loaded), problems=problems)


def _read(path: Path, file: BinaryIO, start: int, size: int) -> OpenedPickle:
    file.seek(start)
    head = file.read(4)
    if head == zip_archive.MAGIC:
        return _read_zip(path, file, start, size)
    return _read_stream(path, file, start, size)


# -- zip ------------------------------------------------------------------------------------------


def _read_zip(path: Path, file: BinaryIO, start: int, size: int) -> OpenedPickle:
    try:
        entries = zip_archive.read_directory(file, size, start)
    except zip_archive.BadZip as error:
        return _recover(path, file, start, size, str(error))
    pickle = next((e for n, e in entries.items() if nested_pickles.MAIN.fullmatch(n)), None)
    if pickle is None:
        raise tensor_bytes.Lost("it has no data.pkl")
    script = any(n.endswith("constants.pkl") for n in entries)
    places = StoragePlaces(path, byte_order(file, entries))
    storages: dict[str, StorageRef] = {}
    problems: list[Problem] = []
    packed: bytes | None = None
    if pickle.method == zip_archive.STORED:
        places.base = 0
        loaded = inert_pickle.load(
            file,
            start=pickle.offset,
            limit=pickle.offset + pickle.size,
            persistent=lambda pid: storage_of(pid, storages),
        )
    else:
        places.base = None
        try:
            packed = zip_archive.read_entry(file, pickle)
        except zip_archive.BadZip as error:
            problems.append(Problem("unreadable", f"{path}: {error}", path, {}))
            packed = b"."
        loaded = inert_pickle.load(packed, persistent=lambda pid: storage_of(pid, storages))
    for name, entry in entries.items():
        found = _KEY.match(name)
        if found is None or (script and "/constants/" in name):
            continue
        if entry.method == zip_archive.DEFLATED:
            places.keys[found.group(1)] = PlacedStorage(
                path, entry.offset, entry.size, entry.packed
            )
        elif entry.method == zip_archive.STORED:
            places.keys[found.group(1)] = PlacedStorage(path, entry.offset, entry.size)
    opened = OpenedPickle(path, "torchscript" if script else "torch-zip", loaded, places, problems)
    opened.main = pickle.name
    stem = pickle.name.removesuffix("data.pkl")
    known = {pickle.name, *(f"{stem}data/{key}" for key in storages)}
    place = (start, start + size)
    opened.others = list(nested_pickles.find_other_pickles(file, entries, known, place))
    if loaded.damage is None:
        rest = (loaded.end, loaded.end, pickle.offset + pickle.size)
        rest = rest if packed is None else (loaded.end, loaded.end, len(packed))
        source = file if packed is None else io.BytesIO(packed)
        opened.others += nested_pickles.after_the_first(source, pickle.name, rest)
    return opened


def byte_order(file: BinaryIO, entries: dict[str, zip_archive.ZipEntry]) -> str:
    """The byte order that an archive declares."""
    for name, entry in entries.items():
        if name.endswith("/byteorder") and entry.size < 32:
            try:
                return "big" if zip_archive.read_entry(file, entry) == b"big" else "little"
            except zip_archive.BadZip:
                return "little"
    return "little"


def _recover(path: Path, file: BinaryIO, start: int, size: int, why: str) -> OpenedPickle:
    """Reads a truncated archive: its entries one after the other, up to the truncation."""
    end = start + size
    at = start
    places = StoragePlaces(path)
    storages: dict[str, StorageRef] = {}
    loaded: Loaded | None = None
    torn = 0
    broken = False
    main = ""
    others: list[PickleMember] = []
    left = nested_pickles.MAX_BYTES
    while (header := zip_archive.local_name(file, at)) is not None:
        name, data = header
        after = data
        found = _KEY.match(name)
        if nested_pickles.MAIN.fullmatch(name) and loaded is None:
            loaded = inert_pickle.load(
                file, start=data, limit=end, persistent=lambda pid: storage_of(pid, storages)
            )
            after = loaded.end
            broken = loaded.damage is not None
            main = name
        elif found is not None and found.group(1) in storages:
            ref = storages[found.group(1)]
            after = data + ref.nbytes
            if after <= end:
                places.keys[ref.key] = PlacedStorage(path, data, ref.nbytes)
            else:
                torn = max(end - data, 0)
        elif name.endswith("/byteorder"):
            file.seek(data)
            places.byteorder = "big" if file.read(3) == b"big" else "little"
        elif (
            further := nested_pickles.read_member_at(file, name, data, min(end, data + left))
        ) is not None:
            others.append(further)
            left -= further.length
        following = _next_header(file, after, end)
        if following is None:
            break
        at = following
    if loaded is None:
        loaded = Loaded(None, end)
    lost = [ref.nbytes for key, ref in storages.items() if key not in places.keys]
    missing = max(sum(lost) - torn, 0)
    facts: dict[str, Any] = {"bytes": size, "missing_bytes": missing}
    message = f"{path}: {why}"
    if broken:
        message += f" (its pickle is damaged: {loaded.damage})"
    elif missing:
        message += f"; at least {missing} bytes of {size + missing} are missing"
    loaded.damage = None
    problem = Problem("unreadable", message, path, facts)
    return OpenedPickle(path, "torch-zip", loaded, places, [problem], missing, main, others)


def _next_header(file: BinaryIO, at: int, end: int) -> int | None:
    """Where the next entry starts: after padding and the sizes of the previous one."""
    if at >= end:
        return None
    file.seek(at)
    data = file.read(1 << 16)
    found = data.find(zip_archive.MAGIC)
    return at + found if found >= 0 else None


# -- legacy ---------------------------------------------------------------------------------------


def _read_stream(path: Path, file: BinaryIO, start: int, size: int) -> OpenedPickle:
    stream: PickleStream = read_stream(file, start=start, limit=start + size)
    places = StoragePlaces(path)
    opened = OpenedPickle(
        path, "torch-legacy" if stream.legacy else "pickle", stream.loaded, places
    )
    opened.missing = stream.missing
    after = stream.end if stream.legacy else stream.loaded.end
    if after is not None:
        end = after if stream.loaded.damage is None else start + size
        place = (start, end, start + size)
        opened.others = list(nested_pickles.after_the_first(file, path.name, place))
    if stream.missing:
        opened.problems.append(
            Problem(
                "unreadable",
                f"{path} is truncated: {stream.missing} of {size + stream.missing} bytes missing",
                path,
                {"bytes": size, "missing_bytes": stream.missing},
            )
        )
    return opened


# -- content --------------------------------------------------------------------------------------


def tensors_of(
    opened: OpenedPickle,
) -> tuple[list[SavedTensor], TensorWalk, dict[str, Any], list[Problem]]:
    """The tensors that can be located, and problems of the others."""
    walk = TensorWalk()
    leaves = list(walk.leaves(opened.value))
    names = moment_names(leaves, walk.optimizers)
    found: list[SavedTensor] = []
    lost: dict[str, str] = {}
    skipped: dict[str, int] = {}
    ties: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for leaf, name in zip(leaves, names, strict=True):
        try:
            if isinstance(leaf.ref, TensorRef):
                found.append(tensor_bytes.locate_tensor(leaf.ref, opened.places, name, leaf.role))
                same = (
                    id(root_of(leaf.ref.storage)),
                    leaf.ref.offset,
                    leaf.ref.size,
                    leaf.ref.stride,
                )
                if leaf.ref.size and leaf.role in ("weight", "buffer"):
                    if same in first:
                        ties[name] = first[same]
                    else:
                        first[same] = name
            else:
                found.append(tensor_bytes.locate_array(leaf.ref, opened.places, name, leaf.role))
        except tensor_bytes.Unsupported as kind:
            skipped[str(kind)] = skipped.get(str(kind), 0) + 1
        except tensor_bytes.Lost as why:
            lost[name] = str(why)
    facts: dict[str, Any] = {}
    if ties:
        facts["ties"] = ties
    if skipped:
        facts["skipped"] = skipped
    problems = []
    if lost:
        one, reason = next(iter(lost.items()))
        summary = f"{len(lost)} of {len(leaves)} tensors are incomplete (first: {one[:200]})"
        facts_lost = {"lost": list(lost)[:LISTED], "lost_count": len(lost), "whole": len(found)}
        cut = next((p for p in opened.problems if p.kind == "unreadable"), None)
        if cut is None:
            message = f"{opened.path}: {summary}: {reason}"
            problems.append(Problem("unreadable", message, opened.path, facts_lost))
        else:
            cut.message += f"; {summary}"
            cut.facts.update(facts_lost)
    return found, walk, facts, problems


def checkpoint(path: Path, opened: OpenedPickle) -> Checkpoint:
    """Reads a single file."""
    problems, unknown = problems_of(opened)
    if opened.loaded.not_judged and all(problem.kind == "unreadable" for problem in problems):
        raise NotJudged(f"{path} was not judged: {opened.loaded.damage}")
    tensors, walk, facts, lost = tensors_of(opened)
    result = Checkpoint(path, opened.format, None, tensors, facts, [*problems, *lost])
    if unknown:
        result.facts["stubbed"] = unknown[:100]
    root = opened.value
    if isinstance(root, dict):
        if "pytorch-lightning_version" in root:
            result.format = "lightning"
            result.facts["lightning"] = short_text(root["pytorch-lightning_version"], 40)
        epoch = checkpoint_info.epoch_from_content(root)
        if epoch is not None:
            result.facts["epoch"] = epoch
        result.step = checkpoint_info.step_from_content(root)
        _scaler(root, result)
    rates = [rate for optimizer in walk.optimizers for rate in optimizer.rates]
    if rates:
        result.facts["lr"] = rates[0] if len(set(rates)) == 1 else rates[:16]
    if result.step is None:
        result.step = checkpoint_info.step_from_snapshot(path)
    if result.step is None:
        result.step = _optimizer_step(walk, tensors)
    if result.step is None:
        result.step = checkpoint_info.step_from_name(path)
    if result.step is None:
        result.step = result.facts.get("epoch")
    return result


def archive(path: Path) -> Checkpoint:
    """A file that is no checkpoint, and contains pickles that are not harmless."""
    members = nested_pickles.hidden_pickles(path)
    opened = OpenedPickle(path, "archive", Loaded(None, 0), StoragePlaces(path), others=members)
    return checkpoint(path, opened)


def _scaler(root: dict[Any, Any], result: Checkpoint) -> None:
    for key in ("scaler", "grad_scaler", "amp_scaler", "scaler_state_dict", "MixedPrecision"):
        inside = root.get(key)
        scale = inside.get("scale") if isinstance(inside, dict) else None
        if isinstance(scale, (int, float)):
            result.facts["loss_scale"] = float(scale)


def _optimizer_step(walk: TensorWalk, tensors: list[SavedTensor]) -> int | None:
    """The number of updates that an optimizer counted."""
    for optimizer in walk.optimizers:
        if isinstance(optimizer.state, dict):
            for kept in optimizer.state.values():
                step = kept.get("step") if isinstance(kept, dict) else None
                if isinstance(step, (int, float)) and not isinstance(step, bool):
                    return int(step) if math.isfinite(step) else None
                if isinstance(step, TensorRef):
                    return read_step_counter(tensors)
    return None


def worth_reading(opened: OpenedPickle) -> bool:
    """Whether a plain pickle has arrays, tensors or dangerous calls."""
    if opened.format != "pickle":
        return True
    if any(judge_pickle(opened.loaded)) or opened.loaded.not_judged or opened.others:
        return True
    if opened.loaded.damage is not None and opened.path.suffix.lower() in (".pt", ".pth"):
        return True
    asked = {wanted.module.partition(".")[0] for wanted in opened.loaded.requested}
    if not asked & {"torch", "numpy"}:
        return False
    return (
        opened.loaded.damage is not None
        or next(TensorWalk().leaves(opened.value), None) is not None
    )
