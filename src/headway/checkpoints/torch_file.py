"""Files of `torch.save` and `torch.jit.save`, and plain pickles of arrays.

The pickle says which tensors there are; the storages are entries of a zip archive, or follow the
pickle. A file that was cut off has no directory: what it still holds is found by walking along the
entries, whose lengths the pickle knows.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from headway.checkpoints import inert, locate, members, steps, zips
from headway.checkpoints.danger import judged
from headway.checkpoints.locate import Placed, Places
from headway.checkpoints.members import Member
from headway.checkpoints.model import Checkpoint, Problem, SavedTensor
from headway.checkpoints.naming import Leaf, Optimizer, Walk
from headway.checkpoints.rebuild import StorageRef, TensorRef
from headway.checkpoints.stubs import Loaded
from headway.checkpoints.torch_legacy import Stream, read_stream, root_of, storage_of

_KEY = re.compile(r"^(?:[^/]*/)?(?:data|constants)/([^/]+)$")
_LISTED = 20
"""Names given in full in a message's facts."""


@dataclass
class Opened:
    """A pickle that was gone through, its storages placed."""

    path: Path
    format: str
    loaded: Loaded
    places: Places
    problems: list[Problem] = field(default_factory=list)
    missing: int = 0
    """Bytes cut off."""
    main: str = ""
    """The member of the archive that `torch.load` reads."""
    others: list[Member] = field(default_factory=list)
    """Further pickles of the archive."""

    @property
    def value(self) -> Any:
        """The object."""
        return self.loaded.value


def read(path: Path, file: BinaryIO, *, start: int = 0, size: int | None = None) -> Opened:
    """A file, or `size` bytes of it."""
    whole = file.seek(0, 2)
    size = whole - start if size is None else size
    file.seek(start)
    head = file.read(4)
    if head == zips.MAGIC:
        return _read_zip(path, file, start, size)
    return _read_stream(path, file, start, size)


# -- zip ------------------------------------------------------------------------------------------


def _read_zip(path: Path, file: BinaryIO, start: int, size: int) -> Opened:
    try:
        entries = zips.directory(file, size, start)
    except zips.BadZip as error:
        return _recover(path, file, start, size, str(error))
    pickle = next((e for n, e in entries.items() if re.fullmatch(r"([^/]*/)?data\.pkl", n)), None)
    if pickle is None:
        raise locate.Lost("it has no data.pkl")
    script = any(n.endswith("constants.pkl") for n in entries)
    places = Places(path, _order(file, entries))
    storages: dict[str, StorageRef] = {}
    problems: list[Problem] = []
    if pickle.method == zips.STORED:
        places.base = 0
        loaded = inert.load(
            file,
            start=pickle.offset,
            limit=pickle.offset + pickle.size,
            persistent=lambda pid: storage_of(pid, storages),
        )
    else:
        places.base = None
        try:
            data = zips.read(file, pickle)
        except zips.BadZip as error:
            problems.append(Problem("unreadable", f"{path}: {error}", path, {}))
            data = b"."
        loaded = inert.load(data, persistent=lambda pid: storage_of(pid, storages))
    for name, entry in entries.items():
        found = _KEY.match(name)
        if found is None or (script and "/constants/" in name):
            continue
        if entry.method == zips.DEFLATED:
            places.keys[found.group(1)] = Placed(path, entry.offset, entry.size, entry.packed)
        elif entry.method == zips.STORED:
            places.keys[found.group(1)] = Placed(path, entry.offset, entry.size)
    opened = Opened(path, "torchscript" if script else "torch-zip", loaded, places, problems)
    opened.main = pickle.name
    stem = pickle.name.removesuffix("data.pkl")
    known = {pickle.name, *(f"{stem}data/{key}" for key in storages)}
    opened.others = list(members.further(file, entries, known))
    return opened


def _order(file: BinaryIO, entries: dict[str, zips.Entry]) -> str:
    for name, entry in entries.items():
        if name.endswith("/byteorder") and entry.size < 32:
            try:
                return "big" if zips.read(file, entry) == b"big" else "little"
            except zips.BadZip:
                return "little"
    return "little"


def _recover(path: Path, file: BinaryIO, start: int, size: int, why: str) -> Opened:
    """An archive without its end: the entries in a row, as far as they go."""
    end = start + size
    at = start
    places = Places(path)
    storages: dict[str, StorageRef] = {}
    loaded: Loaded | None = None
    torn = 0
    broken = False
    main = ""
    others: list[Member] = []
    left = members.MAX_BYTES
    while (header := zips.local_name(file, at)) is not None:
        name, data = header
        after = data
        found = _KEY.match(name)
        if re.fullmatch(r"([^/]*/)?data\.pkl", name) and loaded is None:
            loaded = inert.load(
                file, start=data, limit=end, persistent=lambda pid: storage_of(pid, storages)
            )
            after = loaded.end
            broken = loaded.damage is not None
            main = name
        elif found is not None and found.group(1) in storages:
            ref = storages[found.group(1)]
            after = data + ref.nbytes
            if after <= end:
                places.keys[ref.key] = Placed(path, data, ref.nbytes)
            else:
                torn = max(end - data, 0)
        elif name.endswith("/byteorder"):
            file.seek(data)
            places.byteorder = "big" if file.read(3) == b"big" else "little"
        elif (further := members.at(file, name, data, min(end, data + left))) is not None:
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
    said = f"{path}: {why}"
    if broken:
        said += f" (its pickle is damaged: {loaded.damage})"
    elif missing:
        said += f"; at least {missing} bytes of {size + missing} are missing"
    loaded.damage = None
    problem = Problem("unreadable", said, path, facts)
    return Opened(path, "torch-zip", loaded, places, [problem], missing, main, others)


def _next_header(file: BinaryIO, at: int, end: int) -> int | None:
    """Where the next entry starts: after padding and the sizes of the last one."""
    if at >= end:
        return None
    file.seek(at)
    data = file.read(1 << 16)
    found = data.find(zips.MAGIC)
    return at + found if found >= 0 else None


# -- legacy ---------------------------------------------------------------------------------------


def _read_stream(path: Path, file: BinaryIO, start: int, size: int) -> Opened:
    stream: Stream = read_stream(file, start=start, limit=start + size)
    places = Places(path)
    opened = Opened(path, "torch-legacy" if stream.legacy else "pickle", stream.loaded, places)
    opened.missing = stream.missing
    if stream.missing:
        opened.problems.append(
            Problem(
                "unreadable",
                f"{path} is cut off: {stream.missing} bytes of {size + stream.missing} are missing",
                path,
                {"bytes": size, "missing_bytes": stream.missing},
            )
        )
    return opened


# -- what is in it --------------------------------------------------------------------------------


def problems_of(opened: Opened, *, where: str = "") -> tuple[list[Problem], list[str]]:
    """What is wrong with a pickle, and the unknown classes it names."""
    loaded = opened.loaded
    name = where or str(opened.path)
    if loaded.damage is not None and not any(p.kind == "unreadable" for p in opened.problems):
        message = f"{name}: its pickle is damaged: {loaded.damage}"
        opened.problems.append(Problem("unreadable", message, opened.path, {}))
    problems = list(opened.problems)
    dangerous, unknown = judged(loaded)
    if dangerous:
        message = f"{name} would run code when it is loaded: {_told(dangerous)}; it was not loaded"
        problems.append(Problem("unsafe", message, opened.path, _asked(dangerous)))
    problems += _of_others(opened, name, unknown)
    return problems, unknown


def _of_others(opened: Opened, name: str, unknown: list[str]) -> list[Problem]:
    """The same of the pickles beside the main one; the unknown classes are added."""
    problems = []
    traps: dict[str, dict[str, str]] = {}
    for member in opened.others:
        dangerous, more = member.judged
        unknown += [known for known in more if known not in unknown]
        if dangerous:
            traps[member.name] = dangerous
    if traps:
        first, dangerous = next(iter(traps.items()))
        further = f", and {len(traps) - 1} more of its members" if len(traps) > 1 else ""
        message = (
            f"{name}: its member {first[:200]!r} would run code when it is unpickled: "
            f"{_told(dangerous)}{further}; torch.load reads {opened.main!r} of it, and nothing was "
            "loaded here"
        )
        facts = {"members": [member[:200] for member in traps][:_LISTED], **_asked(dangerous)}
        problems.append(Problem("unsafe", message, opened.path, facts))
    closed = [member for member in opened.others if member.loaded is None]
    if closed:
        one = closed[0]
        message = f"{name}: its member {one.name[:200]!r} could not be looked into: {one.why}"
        facts = {"members": [member.name[:200] for member in closed][:_LISTED]}
        problems.append(Problem("unreadable", message, opened.path, facts))
    return problems


def _told(dangerous: dict[str, str]) -> str:
    said = ", ".join(
        f"{key}({value})" if value else key for key, value in list(dangerous.items())[:3]
    )
    return f"{said} and {len(dangerous) - 3} more" if len(dangerous) > 3 else said


def _asked(dangerous: dict[str, str]) -> dict[str, Any]:
    return {"globals": list(dangerous)[:100], "calls": dict(list(dangerous.items())[:_LISTED])}


def tensors_of(opened: Opened) -> tuple[list[SavedTensor], Walk, dict[str, Any], list[Problem]]:
    """The tensors that can be located, and what is to be said about the others."""
    walk = Walk()
    leaves = list(walk.leaves(opened.value))
    names = _moment_names(leaves, walk.optimizers)
    found: list[SavedTensor] = []
    lost: dict[str, str] = {}
    skipped: dict[str, int] = {}
    ties: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for leaf, name in zip(leaves, names, strict=True):
        try:
            if isinstance(leaf.ref, TensorRef):
                found.append(locate.tensor(leaf.ref, opened.places, name, leaf.role))
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
                found.append(locate.array(leaf.ref, opened.places, name, leaf.role))
        except locate.Unsupported as kind:
            skipped[str(kind)] = skipped.get(str(kind), 0) + 1
        except locate.Lost as why:
            lost[name] = str(why)
    facts: dict[str, Any] = {}
    if ties:
        facts["ties"] = ties
    if skipped:
        facts["skipped"] = skipped
    problems = []
    if lost:
        one, reason = next(iter(lost.items()))
        said = f"{len(lost)} of {len(leaves)} tensors are lost, {one[:200]} first"
        facts_lost = {"lost": list(lost)[:_LISTED], "lost_count": len(lost), "whole": len(found)}
        cut = next((p for p in opened.problems if p.kind == "unreadable"), None)
        if cut is None:
            message = f"{opened.path}: {said}: {reason}"
            problems.append(Problem("unreadable", message, opened.path, facts_lost))
        else:
            cut.message += f"; {said}"
            cut.facts.update(facts_lost)
    return found, walk, facts, problems


def _moment_names(leaves: list[Leaf], optimizers: list[Optimizer]) -> list[str]:
    """The names of all; a moment bears its parameter's where that is certain."""
    known = [_parameter_names(leaves, optimizers, n) for n in range(len(optimizers))]
    names = []
    for leaf in leaves:
        if leaf.optimizer is None:
            names.append(leaf.name)
            continue
        key, rest = leaf.path[0], leaf.path[1:]
        prefix = f"optimizer{leaf.optimizer}." if leaf.optimizer else ""
        named = known[leaf.optimizer].get(key)
        if named is None:
            named = f"{prefix}state.{key}" if key.isdigit() else key
        names.append(".".join((named, *rest)))
    return names


def _parameter_names(
    leaves: list[Leaf], optimizers: list[Optimizer], number: int
) -> dict[str, str]:
    """The name behind each index of an optimizer, if all of them fit by number and shape."""
    order = [str(key) for key in optimizers[number].order if isinstance(key, int)]
    if not order:
        return {}
    weights: list[tuple[str, tuple[int, ...]]] = []
    seen = set()
    for leaf in leaves:
        if (
            leaf.role != "weight"
            or not isinstance(leaf.ref, TensorRef)
            or leaf.optimizer is not None
        ):
            continue
        same = (id(root_of(leaf.ref.storage)), leaf.ref.offset, leaf.ref.size)
        if same not in seen:
            seen.add(same)
            weights.append((leaf.name, leaf.ref.size))
    shapes: dict[str, tuple[int, ...]] = {}
    for leaf in leaves:
        own = leaf.optimizer == number and leaf.role == "moment"
        if own and isinstance(leaf.ref, TensorRef) and leaf.ref.size:
            shapes.setdefault(leaf.path[0], leaf.ref.size)
    flat = list(weights)
    # Weight decay for matrices only is the other common order.
    matrices = [w for w in weights if len(w[1]) >= 2] + [w for w in weights if len(w[1]) < 2]
    orders = [flat, matrices] if len(optimizers[number].groups) == 2 else [flat]
    if len(optimizers[number].groups) > 2:
        return {}
    for candidate in orders:
        if len(candidate) == len(order) and all(
            shapes.get(key, shape) == shape
            for key, (_, shape) in zip(order, candidate, strict=True)
        ):
            return {key: name for key, (name, _) in zip(order, candidate, strict=True)}
    return {}


def checkpoint(path: Path, opened: Opened) -> Checkpoint:
    """A file on its own."""
    problems, unknown = problems_of(opened)
    tensors, walk, facts, lost = tensors_of(opened)
    made = Checkpoint(path, opened.format, None, tensors, facts, [*problems, *lost])
    if unknown:
        made.facts["stubbed"] = unknown[:100]
    root = opened.value
    if isinstance(root, dict):
        if "pytorch-lightning_version" in root:
            made.format = "lightning"
            made.facts["lightning"] = str(root["pytorch-lightning_version"])[:40]
        epoch = steps.epoch_of(root)
        if epoch is not None:
            made.facts["epoch"] = epoch
        made.step = steps.of_content(root)
        _scaler(root, made)
    rates = [rate for optimizer in walk.optimizers for rate in optimizer.rates]
    if rates:
        made.facts["lr"] = rates[0] if len(set(rates)) == 1 else rates[:16]
    if made.step is None:
        made.step = steps.of_snapshot(path)
    if made.step is None:
        made.step = _optimizer_step(walk, tensors)
    if made.step is None:
        made.step = steps.of_name(path)
    if made.step is None:
        made.step = made.facts.get("epoch")
    return made


def _scaler(root: dict[Any, Any], made: Checkpoint) -> None:
    for key in ("scaler", "grad_scaler", "amp_scaler", "scaler_state_dict", "MixedPrecision"):
        inside = root.get(key)
        scale = inside.get("scale") if isinstance(inside, dict) else None
        if isinstance(scale, (int, float)):
            made.facts["loss_scale"] = float(scale)


def _optimizer_step(walk: Walk, tensors: list[SavedTensor]) -> int | None:
    """The number of updates an optimizer counted."""
    for optimizer in walk.optimizers:
        if isinstance(optimizer.state, dict):
            for kept in optimizer.state.values():
                said = kept.get("step") if isinstance(kept, dict) else None
                if isinstance(said, (int, float)) and not isinstance(said, bool):
                    return int(said)
                if isinstance(said, TensorRef):
                    return _scalar(tensors)
    return None


def _scalar(tensors: list[SavedTensor]) -> int | None:
    """The value of the first `step` of an optimizer: four bytes."""
    for tensor in tensors:
        if tensor.name.endswith(".step") and tensor.numel == 1 and tensor.inflate is None:
            form = {"float32": "f", "float64": "d", "int64": "q", "int32": "i"}.get(tensor.dtype)
            if form is None:
                return None
            with open(tensor.span.file, "rb") as file:
                file.seek(tensor.span.offset)
                data = file.read(struct.calcsize(form))
            order = "<" if tensor.byteorder == "little" else ">"
            try:
                value = struct.unpack(order + form, data)[0]
                return int(value) if 0 <= value < steps.MAX_STEP else None
            except (struct.error, ValueError, OverflowError):
                return None
    return None


def worth_reading(opened: Opened) -> bool:
    """Whether a plain pickle has anything a checkpoint would: arrays, tensors, or a trap."""
    if opened.format != "pickle":
        return True
    dangerous, _ = judged(opened.loaded)
    if dangerous:
        return True
    asked = {wanted.module.partition(".")[0] for wanted in opened.loaded.requested}
    if not asked & {"torch", "numpy"}:
        return False
    return opened.loaded.damage is not None or next(Walk().leaves(opened.value), None) is not None
