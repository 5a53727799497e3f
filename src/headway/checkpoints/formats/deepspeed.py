"""DeepSpeed folders: the weights of the module, and the flat fp32 partitions of every rank.

latest                                    names the tag
global_step500/mp_rank_00_model_states.pt weights, buffers, counters
global_step500/…zero_pp_rank_0_mp_rank_00_optim_states.pt   fp32 weights and moments of a rank
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headway.checkpoints import checkpoint_info, tensor_bytes
from headway.checkpoints.checkpoint_info import Checkpoint, Problem, SavedTensor
from headway.checkpoints.folder_access import is_own_file
from headway.checkpoints.formats import torch_file
from headway.checkpoints.pickle_rebuild import TensorRef
from headway.checkpoints.pickle_values import Stub, short_text
from headway.checkpoints.pickle_verdict import problems_of
from headway.checkpoints.tensor_naming import TensorWalk, is_optimizer

_MODEL = re.compile(r"(^|_)model_states\.pt$")
_OPTIMIZER = re.compile(r"_optim_states\.pt$")
_RANK = re.compile(r"(?:zero_pp_rank|dp_rank)_(\d+)(?:_mp_rank_(\d+))?")
_EXPERT = re.compile(r"^layer_\d+_expert_\d+")
_MASTERS = ("single_partition_of_fp32_groups", "fp32_flat_groups", "fp32_groups")
MAX_TAG = 1024
MAX_FILES = 10_000


def folder_of(path: Path) -> Path | None:
    """The folder with the shards: this one, or the one that `latest` names; None if neither."""
    if _shards(path):
        return path
    latest = path / "latest"
    if is_own_file(latest) and latest.stat().st_size <= MAX_TAG:
        tag = latest.read_text("utf-8", "replace").strip()
        if (
            tag
            and "/" not in tag
            and "\\" not in tag
            and tag not in (".", "..")
            and "\0" not in tag
        ):
            inside = path / tag
            if inside.is_dir() and _shards(inside):
                return inside
            if not inside.exists() and tag.startswith("global_step"):
                return inside
    return None


def tags_of(path: Path) -> list[Path]:
    """The tagged checkpoints in a folder."""
    return [inside for inside in sorted(path.iterdir()) if inside.is_dir() and _shards(inside)]


def _shards(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    found = [
        inside
        for inside in filter(is_own_file, sorted(path.glob("*_states.pt")))
        if _MODEL.search(inside.name) or _OPTIMIZER.search(inside.name)
    ]
    return found[:MAX_FILES]


def read(path: Path) -> Checkpoint:
    """Reads the folder."""
    result = Checkpoint(path, "deepspeed")
    folder = folder_of(path) or path
    add(folder, result, weights=True)
    if result.step is None:
        result.step = checkpoint_info.step_from_name(folder)
    return result


def add(folder: Path, result: Checkpoint, *, weights: bool) -> None:
    """Adds the content of the shards to a checkpoint."""
    if not folder.is_dir():
        message = f"{result.path}: `latest` names {folder.name}, which does not exist"
        result.problems.append(
            Problem("unreadable", message, result.path, {"missing": [folder.name]})
        )
        return
    shards = _shards(folder)
    for shard in shards:
        try:
            with open(shard, "rb") as file:
                opened = torch_file.read(shard, file)
        except (OSError, tensor_bytes.Lost) as error:
            result.problems.append(Problem("unreadable", f"{shard}: {error}", shard, {}))
            continue
        _take(shard, opened, result, weights)
    _missing_ranks(folder, shards, result)


def _take(shard: Path, opened: torch_file.OpenedPickle, result: Checkpoint, weights: bool) -> None:
    if opened.format == "pickle" and opened.value is None:
        message = f"{shard} is not a torch.save file ({shard.stat().st_size} bytes)"
        opened.problems.append(Problem("unreadable", message, shard, {}))
        opened.loaded.damage = None
    problems, unknown = problems_of(opened)
    result.problems += problems
    if unknown:
        known = result.facts.setdefault("stubbed", [])
        known.extend(name for name in unknown if name not in known)
    root = opened.value if isinstance(opened.value, dict) else {}
    rank = _RANK.search(shard.name)
    if _OPTIMIZER.search(shard.name):
        state = root.get("optimizer_state_dict")
        if isinstance(state, dict) and rank is not None:
            _partitions(state, opened, result, rank.group(1), rank.group(2))
        else:
            _plain(opened, result, "")
        return
    step = checkpoint_info.step_from_content(root)
    result.step = step if step is not None else result.step
    for key in ("global_samples", "skipped_steps", "ds_version", "dp_world_size", "mp_world_size"):
        if isinstance(root.get(key), (int, str)):
            result.facts[key] = root[key] if isinstance(root[key], int) else root[key][:40]
    if weights:
        several = (rank is not None and rank.group(1) != "0") or "mp_rank_00" not in shard.name
        prefix = "" if not several or _EXPERT.match(shard.name) else _prefix(shard)
        opened.loaded.value = {k: root[k] for k in ("module", "optimizer") if k in root}
        _plain(opened, result, prefix)


def _prefix(shard: Path) -> str:
    return _MODEL.sub("", shard.name) + "."


def _plain(opened: torch_file.OpenedPickle, result: Checkpoint, prefix: str) -> None:
    tensors, _, facts, lost = torch_file.tensors_of(opened)
    taken = {tensor.name for tensor in result.tensors}
    for tensor in tensors:
        name = prefix + tensor.name
        if name not in taken:
            result.tensors.append(_named(tensor, name, tensor.role))
    result.facts.update(facts)
    result.problems += lost


def _named(tensor: SavedTensor, name: str, role: str) -> SavedTensor:
    return SavedTensor(
        name,
        role,
        tensor.dtype,
        tensor.shape,
        tensor.span,
        tensor.stride,
        tensor.byteorder,
        tensor.inflate,
    )


def _partitions(
    state: dict[Any, Any],
    opened: torch_file.OpenedPickle,
    result: Checkpoint,
    rank: str,
    model_rank: str | None,
) -> None:
    """The partition of a rank: by parameter if the file names them, else by group."""
    scaler = state.get("loss_scaler")
    if isinstance(scaler, Stub) and isinstance(scaler.get("cur_scale"), (int, float)):
        result.facts["loss_scale"] = float(scaler.get("cur_scale"))
    where = f"rank{int(rank)}" + (f".mp{int(model_rank)}" if model_rank and int(model_rank) else "")
    slices = state.get("param_slice_mappings")
    mapped = slices if isinstance(slices, list) else []
    for key in _MASTERS:
        groups = state.get(key)
        if isinstance(groups, list):
            for group, ref in enumerate(groups):
                _add(opened, result, ref, f"{where}.group{group}", "fp32", "weight", mapped, group)
    base = state.get("base_optimizer_state")
    if base is None:
        base = state.get("optimizer_state_dict")
    states: list[tuple[int, Any]] = []
    if isinstance(base, list):
        states = list(enumerate(base))
    elif isinstance(base, dict) and is_optimizer(base):
        inner = base["state"]
        if isinstance(inner, dict):
            states = [(k if type(k) is int else n, v) for n, (k, v) in enumerate(inner.items())]
        groups = base["param_groups"]
        rates = [
            group["lr"]
            for group in (groups if isinstance(groups, list) else ())
            if isinstance(group, dict) and isinstance(group.get("lr"), (int, float))
        ]
        if rates:
            result.facts["lr"] = rates[0]
    elif base is not None:
        states = [(0, base)]
    for group, kept in states:
        if isinstance(kept, dict):
            for what, ref in kept.items():
                role = "other" if what == "step" else "moment"
                _add(
                    opened,
                    result,
                    ref,
                    f"{where}.group{group}",
                    short_text(what),
                    role,
                    mapped,
                    group,
                )
        else:
            for leaf in TensorWalk().leaves(kept):
                _add(
                    opened,
                    result,
                    leaf.ref,
                    f"{where}.group{group}",
                    leaf.name,
                    "moment",
                    [],
                    group,
                )


def _add(
    opened: torch_file.OpenedPickle,
    result: Checkpoint,
    ref: Any,
    where: str,
    what: str,
    role: str,
    slices: list[Any],
    group: int,
) -> None:
    if not isinstance(ref, TensorRef):
        return
    pieces = _slices(slices, group, ref) if len(ref.size) == 1 else []
    for name, piece in pieces or [(where, ref)]:
        try:
            result.tensors.append(
                tensor_bytes.locate_tensor(piece, opened.places, f"{name}.{what}", role)
            )
        except tensor_bytes.Unsupported as kind:
            skipped = result.facts.setdefault("skipped", {})
            skipped[str(kind)] = skipped.get(str(kind), 0) + 1
        except tensor_bytes.Lost as why:
            message = f"{opened.path}: {name}.{what} is incomplete: {why}"
            result.problems.append(
                Problem("unreadable", message, opened.path, {"lost": [f"{name}.{what}"]})
            )


def _slices(slices: list[Any], group: int, ref: TensorRef) -> list[tuple[str, TensorRef]]:
    """The parameters in a flat partition, each with its range."""
    if group >= len(slices) or not isinstance(slices[group], dict):
        return []
    found: list[tuple[str, TensorRef]] = []
    for name, fragment in slices[group].items():
        if not isinstance(fragment, Stub) or not isinstance(name, str):
            return []
        numel, start = fragment.get("numel"), fragment.get("start")
        if len(fragment.args) == 2:
            numel, start = fragment.args
        if type(numel) is not int or type(start) is not int or not 0 <= numel <= ref.size[0]:
            return []
        if start < 0 or start + numel > ref.size[0]:
            return []
        piece = TensorRef(ref.storage, ref.offset + start, (numel,), (1,), ref.dtype)
        found.append((name, piece))
    return found


def _missing_ranks(folder: Path, shards: list[Path], result: Checkpoint) -> None:
    """Adds a problem for ranks without a shard."""
    ranks: dict[str, set[int]] = {}
    for shard in shards:
        rank = _RANK.search(shard.name)
        if rank is not None and _OPTIMIZER.search(shard.name):
            ranks.setdefault(rank.group(2) or "", set()).add(int(rank.group(1)))
    world = result.facts.get("dp_world_size")
    for present in ranks.values():
        count = world if isinstance(world, int) and 0 < world < 1 << 20 else max(present) + 1
        gone = sorted(set(range(max(count, max(present) + 1))) - present)
        if gone:
            message = f"{folder}: the optimizer states of {len(gone)} of {count} ranks are missing"
            names = [f"rank {rank}" for rank in gone[:20]]
            result.problems.append(Problem("unreadable", message, folder, {"missing": names}))
