"""Hugging Face checkpoint folders, and weights in several files with an index."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from headway.checkpoints import checkpoint_info, nested_pickles, tensor_bytes
from headway.checkpoints.checkpoint_info import Checkpoint, Problem, SavedTensor, describe_head
from headway.checkpoints.folder_access import is_own_file, is_own_folder
from headway.checkpoints.formats import dcp, deepspeed, safetensors, torch_file
from headway.checkpoints.pickle_verdict import problems_of

_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
)
_INDICES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
)
_SHARD = re.compile(r"^(model|pytorch_model|adapter_model)-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
_STATES = ("optimizer.pt", "optimizer.bin")
_OTHERS = ("scheduler.pt", "scaler.pt", "training_args.bin", "rng_state.pth", "scheduler.bin")
_STATE = "trainer_state.json"
_RANDOM_STATE = re.compile(r"rng_state_\d+\.pth|random_states_\d+\.pkl")
MAX_STATE = 1 << 28
_LISTED = 20


def is_hf_folder(path: Path) -> bool:
    """Whether it has named weights, or the trainer state next to saved tensors."""
    if any(is_own_file(path / name) for name in (*_WEIGHTS, *_INDICES)):
        return True
    if is_own_file(path / _STATE):
        return any(is_own_file(path / name) for name in _STATES) or bool(_shards(path))
    return bool(_shards(path)) or bool(list(path.glob("pytorch_model_fsdp_*")))


def _shards(path: Path) -> list[Path]:
    return [
        inside
        for inside in sorted(path.iterdir())
        if _SHARD.match(inside.name) and is_own_file(inside)
    ]


def read(path: Path) -> Checkpoint:
    """Reads the folder."""
    result = Checkpoint(path, "hf-folder")
    _weights(path, result)
    for name in _STATES:
        if is_own_file(path / name):
            _pickled(path / name, result, moments=True)
    _state(path, result)
    _inside(path, result)
    _beside(path, result)
    if result.step is None:
        result.step = checkpoint_info.step_from_name(path)
    return result


def _beside(path: Path, result: Checkpoint) -> None:
    """Judges every other file of the folder that is a pickle, under any name."""
    read = {tensor.span.file for tensor in result.tensors} | {p.path for p in result.problems}
    for inside in sorted(path.iterdir()):
        if inside in read or not is_own_file(inside):
            continue
        known = inside.name in _OTHERS or _RANDOM_STATE.fullmatch(inside.name) is not None
        if known:
            _pickled(inside, result, moments=False)
        else:
            _other(inside, result)


def _other(path: Path, result: Checkpoint) -> None:
    """Judges a file of no known name by what is in it."""
    with open(path, "rb") as file:
        head = file.read(64)
    if nested_pickles.has_main_pickle(path, head):
        _pickled(path, result, moments=False)
    elif not safetensors.recognised(head, path.stat().st_size):
        result.problems += torch_file.archive(path).problems


def _inside(path: Path, result: Checkpoint) -> None:
    """Adds sharded states of DeepSpeed and FSDP in the folder."""
    folder = deepspeed.folder_of(path)
    if folder is not None:
        step = result.step
        deepspeed.add(folder, result, weights=not result.tensors)
        result.step = step if step is not None else result.step
    for inside in sorted([*path.glob("pytorch_model_fsdp_*"), *path.glob("optimizer_[0-9]*")]):
        if is_own_folder(inside) and dcp.is_dcp(inside):
            part = dcp.read(inside)
            result.tensors += part.tensors
            result.problems += part.problems
            result.facts.update(part.facts)
        elif is_own_file(inside):
            _pickled(inside, result, moments=True)


def _weights(path: Path, result: Checkpoint) -> None:
    for name in _INDICES:
        if is_own_file(path / name):
            _from_index(path / name, result)
            return
    for name in _WEIGHTS:
        if is_own_file(path / name):
            _file(path / name, result)
            return
    shards = _shards(path)
    if shards:
        for shard in shards:
            _file(shard, result)
        match = _SHARD.match(shards[0].name)
        assert match is not None
        count = int(match.group(3))
        names = {shard.name for shard in shards}
        wanted = [_shard_name(match, number, count) for number in range(1, min(count, 10_000) + 1)]
        gone = [name for name in wanted if name not in names]
        index = f"{match.group(1)}.{match.group(4)}.index.json"
        _missing(path, result, [*gone, index], count, [])


def _shard_name(match: re.Match[str], number: int, count: int) -> str:
    return f"{match.group(1)}-{number:05d}-of-{count:05d}.{match.group(4)}"


def _file(path: Path, result: Checkpoint) -> None:
    """Reads a file of weights."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(512)
    if size == 0:
        result.problems.append(
            Problem("unreadable", f"{path} is empty (0 bytes)", path, {"bytes": 0})
        )
    elif path.suffix == ".safetensors" or safetensors.recognised(head, size):
        tensors, facts, problems = safetensors.read(path)
        result.tensors += tensors
        result.facts.update(facts)
        result.problems += problems
    elif (what := describe_head(head)) is not None and head[:2] != b"PK":
        message = f"{path}: it is {what}"
        result.problems.append(Problem("unreadable", message, path, {"bytes": size}))
    else:
        _pickled(path, result, moments=True)


def _pickled(path: Path, result: Checkpoint, *, moments: bool) -> None:
    """Reads a torch.save file next to or among the weights."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                message = f"{path} is empty (0 bytes)"
                result.problems.append(Problem("unreadable", message, path, {"bytes": 0}))
                return
            opened = torch_file.read(path, file)
    except tensor_bytes.Lost as error:
        result.problems.append(Problem("unreadable", f"{path}: {error}", path, {}))
        return
    problems, unknown = problems_of(opened)
    result.problems += problems
    if unknown:
        known = result.facts.setdefault("stubbed", [])
        known.extend(name for name in unknown if name not in known)
    if path.name == "scaler.pt" and isinstance(opened.value, dict):
        scale = opened.value.get("scale")
        if isinstance(scale, (int, float)):
            result.facts["loss_scale"] = float(scale)
    if moments:
        tensors, walk, facts, lost = torch_file.tensors_of(opened)
        result.tensors += tensors
        result.facts.update(facts)
        result.problems += lost
        rates = [rate for optimizer in walk.optimizers for rate in optimizer.rates]
        if rates:
            result.facts["lr"] = rates[0] if len(set(rates)) == 1 else rates[:16]
        if result.step is None:
            result.step = torch_file._optimizer_step(walk, tensors)


def _from_index(index: Path, result: Checkpoint) -> None:
    names = safetensors.index_of(index)
    if names is None:
        message = f"{index} is not an index of weights: it has no `weight_map`"
        result.problems.append(Problem("unreadable", message, index, {}))
        for shard in _shards(index.parent):
            _file(shard, result)
        return
    before = len(result.tensors)
    gone: list[str] = []
    files = sorted(set(names.values()))
    for name in files:
        if "/" in name or "\\" in name or "\0" in name or not is_own_file(index.parent / name):
            gone.append(name)
        else:
            _file(index.parent / name, result)
    there = {tensor.name for tensor in result.tensors[before:]}
    lost = [name for name, file in names.items() if file in set(gone)]
    if gone:
        _missing(index.parent, result, gone, len(files), lost)
    elif not any(problem.kind == "unreadable" for problem in result.problems):
        absent = [name for name in names if name not in there and not result.facts.get("skipped")]
        if absent:
            message = (
                f"{index} names {len(names)} tensors, but the files do not have {len(absent)} of "
                f"them (first: {absent[0][:200]})"
            )
            facts = {"lost": absent[:_LISTED], "lost_count": len(absent)}
            result.problems.append(Problem("unreadable", message, index, facts))


def _missing(path: Path, result: Checkpoint, gone: list[str], count: int, lost: list[str]) -> None:
    message = f"{path}: {len(gone)} of its files are missing (first: {gone[0][:200]})"
    if lost:
        message += f", and {len(lost)} tensors with them"
    facts: dict[str, Any] = {"missing": gone[:_LISTED], "files": count}
    if lost:
        facts |= {"lost": lost[:_LISTED], "lost_count": len(lost)}
    result.problems.append(Problem("unreadable", message, path, facts))


def _state(path: Path, result: Checkpoint) -> None:
    """Reads the state of the trainer."""
    state = path / _STATE
    if not is_own_file(state):
        return
    try:
        if state.stat().st_size > MAX_STATE:
            return
        content = json.loads(state.read_bytes())
    except (ValueError, RecursionError):
        message = f"{state} is not valid JSON: truncated or damaged"
        result.problems.append(
            Problem("unreadable", message, state, {"bytes": state.stat().st_size})
        )
        return
    step = checkpoint_info.step_from_content(content)
    result.step = step if step is not None else result.step
    if isinstance(content, dict) and isinstance(content.get("epoch"), (int, float)):
        result.facts["epoch"] = content["epoch"]


def read_sharded(path: Path, kind: str) -> Checkpoint:
    """Reads weights with an index, and nothing else in the folder."""
    index = path
    if path.is_dir():
        index = next(filter(is_own_file, sorted(path.glob("*.safetensors.index.json"))))
    result = Checkpoint(path, kind)
    _from_index(index, result)
    result.step = checkpoint_info.step_from_name(path if path.is_dir() else path.parent)
    return result


def parts_of(tensors: list[SavedTensor]) -> set[Path]:
    """The files with the tensors of a checkpoint."""
    return {tensor.span.file for tensor in tensors}
