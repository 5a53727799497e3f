"""The ranks that train together, seen from one of them."""

from __future__ import annotations

import datetime
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.errors import RankLost, RunDirInUse, UsageError
from headway.output.notices import Notices
from headway.torch_adapters.live_objects import find_instances
from headway.torch_adapters.private_parts import private_part
from headway.torch_adapters.process_groups import sharded_tensors
from headway.torch_adapters.process_groups.rank_agreement import (
    LOST,
    HostGroup,
    ProcessGroup,
    first_sentence,
)

# The other ranks of this training, and the one reduction in which they agree.

# A guard follows the ranks that share gradients with this one: those of a DistributedDataParallel
# around the model, those over which its parameters are sharded (DTensor, FSDP), or the `group=` it
# was given. A process group that merely exists, while the model is local, is not followed.

# Every optimizer step makes exactly one small all-reduce (`rank_vote.py` says of what); nothing
# else is exchanged, but for a bad step that all run again together (`rerun_group.py`). Whatever one
# rank has to report, that it was asked to stop or that it found a weight non-finite, waits for the
# next one and is known to all at the same step. So no rank can be left waiting for a
# message that another does not send.

FAILED = (
    "the guard of another rank failed, so all guards were switched off at the same step; "
    "training continues without a guard. The log of that rank has the reason"
)
UNEVEN = (
    "under model.join() ranks take different numbers of steps and cannot agree on each: the guard "
    "is switched off. Give every rank the same number of batches"
)
STORE_SECONDS = 60.0
"""Seconds that a rank waits for what rank 0 chose."""


class RankGroup:
    """The ranks that decide together, seen from one of them."""

    def __init__(self, group: ProcessGroup, models: Sequence[nn.Module]) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.leaving = False
        """A rank must exit; true at the same step on every rank."""
        self.off = ""
        """Why every rank's guard is switched off, at the same step; empty: it is not."""
        self.poisoned = False
        """To be reported: this rank found a weight or a moment of its own non-finite."""
        self.save_asked = False
        """To be reported: it is time to write a snapshot."""
        self.saving = False
        """It is; true at the same step on every rank, until they have done so."""
        self._exit_requested = False
        self._models = models
        self.alike = False
        """Whether every rank has the same list of parameters."""
        self.copies = sharded_tensors.ReplicaCounts(models, self.size, alike=False)
        self.members = tuple(dist.get_process_group_ranks(group))
        self.training = False
        """Whether a step was voted on. From then on no question may use the user's own group: a
        rank whose guard has failed answers late, after collectives of the next step."""
        self.begin_equal: bool | None = None
        """Whether the plain weights were equal on all ranks at first: only then are they replicas.
        A wrapper says so itself; None: not known yet."""
        self.same_batches = False
        """Whether every rank needs the same batches: tensor parallelism over all of them."""
        self.shares_host_group = False
        """Whether every rank has a host group of an earlier guard, so that it can be shared."""
        self.missing_descriptors = 0
        """How many file descriptors some rank lacks for a host group."""

    def request_exit(self) -> None:
        """Report with the next step that this rank must exit; for signal handlers."""
        self._exit_requested = True

    @property
    def exit_requested(self) -> bool:
        """Whether a signal has requested that this rank exits."""
        return self._exit_requested

    def agree_on_start(self, segment: int, refused: UsageError | None = None) -> int:
        """The segment all ranks will write; also finds out whether they hold the same model.

        Every rank must come here: it is the first thing a guard does. If the run directory was
        refused to one rank, all raise.
        """
        named = repr(sharded_tensors.names_and_shapes(self._models)).encode()
        mark = int.from_bytes(hashlib.sha256(named).digest()[:6], "big")
        state = HostGroup.state(self.members)
        lacking = HostGroup.missing_descriptors(self.members)
        message = torch.tensor(
            [segment, mark, -mark, _refusal(refused), state, -state, lacking],
            dtype=torch.int64,
            device=self.reduction_device(),
        )
        self.reduce(message, dist.ReduceOp.MAX, "while the guard was created")
        agreed, highest, lowest, any_refused, most, least, lacking = message.tolist()
        if any_refused:
            raise refused or _REFUSALS[any_refused]
        self.alike = highest == -lowest
        self.shares_host_group = most == -least > 0
        self.missing_descriptors = int(lacking)
        self.copies = sharded_tensors.ReplicaCounts(self._models, self.size, alike=self.alike)
        return int(agreed)

    def reduce(self, numbers: Tensor, operation: Any, when: str) -> None:
        """All-reduce in place. On CUDA nothing waits; elsewhere, it waits for all ranks."""
        try:
            dist.all_reduce(numbers, op=operation, group=self.group)
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of {self.size} lost the others {when}: "
                f"{first_sentence(error)}: {LOST}"
            ) from error

    def place(self, device: torch.device) -> torch.device:
        """Where numbers from a device can be reduced: there, or on the group's own device."""
        return device if device.type in self._devices() else self.reduction_device()

    def _devices(self) -> list[str]:
        kinds: list[torch.device] = getattr(self.group, "_device_types", [])
        return [kind.type for kind in kinds]

    def reduction_device(self) -> torch.device:
        """Where small numbers from the host can be reduced."""
        if "cpu" in self._devices():
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())


_REFUSALS = {
    1: RunDirInUse(
        "the run directory is in use by another process; the message of rank 0 names it"
    ),
    2: UsageError("another rank cannot use the run directory; its message says why"),
}


def _refusal(error: UsageError | None) -> int:
    return 0 if error is None else 1 if isinstance(error, RunDirInUse) else 2


def find_rank_group(
    models: Sequence[nn.Module],
    optimizers: Iterable[Optimizer],
    group: ProcessGroup,
    notices: Notices,
) -> RankGroup | None:
    """The ranks to decide with; None when this rank trains alone."""
    if not (dist.is_available() and dist.is_initialized()):
        if group is not None:
            raise UsageError("Guard(group=…) needs torch.distributed.init_process_group first")
        return None
    given = group is not None
    if group is None:
        groups = [one for item in optimizers for one in item.param_groups]
        parameters = [p for one in groups for p in one["params"]]
        group = _group_of(models, parameters, notices)
    if group is None:
        return None
    if dist.get_rank(group) < 0:
        raise UsageError("this rank is not a member of the group given to Guard(group=…)")
    if dist.get_world_size(group) < 2:
        return None
    ranks = RankGroup(group, models)
    notices.rank = ranks.rank
    wrapped = bool(_groups(models))
    ranks.begin_equal = None if given and not wrapped else True
    ranks.same_batches = not wrapped and _is_tensor_parallel(models)
    return ranks


def own_rank() -> int:
    """This process's rank, for the names of its files, whether or not ranks are followed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    number = os.environ.get("RANK", "0")
    return int(number) if several and number.isdigit() else 0


def chosen_by_rank_zero(key: str, own: str) -> str:
    """What rank 0 chose, on every rank of a job whose process group does not exist yet.

    Uses the store of torchrun, or one at MASTER_ADDR:MASTER_PORT that is closed when all have read.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), own_rank()
    if size <= 1:
        return own
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not (host and port.isdigit() and dist.is_available()):
        raise UsageError(
            f"{size} processes train together, but MASTER_ADDR and MASTER_PORT are not set, so "
            "they cannot agree on a run directory. Pass --out DIR, or start them with torchrun"
        )
    agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = dist.PrefixStore(  # type: ignore[attr-defined]
            "headway",
            dist.TCPStore(  # type: ignore[attr-defined]
                host,
                int(port),
                world_size=None,
                is_master=rank == 0 and not agent_store,
                timeout=datetime.timedelta(seconds=STORE_SECONDS),
                wait_for_workers=False,
                multi_tenant=not agent_store,
            ),
        )
        if rank == 0:
            store.set(key, own)
        chosen: str = store.get(key).decode()
        # Nobody may close the store before the last rank has read from it.
        if store.add(f"{key}/read", 1) == size:
            store.set(f"{key}/all", "1")
        if rank == 0 and not agent_store:
            store.wait([f"{key}/all"])
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise UsageError(
            f"rank {rank} of {size} could not agree with the others on a run directory at "
            f"{host}:{port}: {lines[0] if lines else type(error).__name__}. Pass --out DIR"
        ) from error
    return chosen


def world_size() -> int:
    """The number of processes that this one could exchange collectives with, itself included."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def find_replicas(models: Sequence[nn.Module]) -> list[nn.parallel.DistributedDataParallel]:
    """The DistributedDataParallel in or around these models."""
    kind = nn.parallel.DistributedDataParallel
    inside = [unit for model in models for unit in model.modules() if isinstance(unit, kind)]
    if inside or not (dist.is_available() and dist.is_initialized()):
        return inside
    # The user may have handed us the model that the wrapper holds.
    wanted = {id(model) for model in models}
    return [
        thing
        for thing in find_instances(kind)
        if id(thing.__dict__.get("_modules", {}).get("module")) in wanted
    ]


def sync_buffers(replica: nn.parallel.DistributedDataParallel) -> None:
    """Send the first rank's buffers to the others, as the next forward pass would; where torch
    lacks the private method, ranks keep the buffers they have."""
    sync = getattr(replica, "_sync_buffers", None)
    if sync is not None and replica.will_sync_module_buffers():
        sync()


_find_store: Callable[[], Any] = private_part(
    "torch.distributed.distributed_c10d._get_default_store",
    lambda: None,
    without="ranks of a script that synchronises by hand are not compared",
)


def default_store() -> Any:
    """The key-value store that all ranks share; None where it cannot be reached."""
    return _find_store()


def is_wrapped_late(models: Sequence[nn.Module]) -> bool:
    """Whether models that are not followed share gradients with other ranks after all."""
    return any(dist.get_world_size(unit.process_group) > 1 for unit in find_replicas(models))


def _group_of(
    models: Sequence[nn.Module], parameters: Iterable[Tensor], notices: Notices
) -> ProcessGroup:
    if dist.get_world_size() <= 1:
        return None
    found: dict[tuple[int, ...], ProcessGroup] = {}
    for group in _groups(models):
        found[tuple(sorted(dist.get_process_group_ranks(group)))] = group
    for mesh in _meshes([*(p for model in models for p in model.parameters()), *parameters]):
        members = tuple(sorted(mesh.mesh.flatten().tolist()))
        found.setdefault(members, mesh.get_group() if mesh.ndim == 1 else None)
    everyone = tuple(range(dist.get_world_size()))
    if not found:
        return None
    if len(found) > 1 or everyone in found:
        if len(found) > 1 and everyone not in found:
            notices.once(
                "group",
                "the model's parts are shared by different groups of ranks: all "
                f"{len(everyone)} ranks decide together. Guard(group=…) selects others",
            )
        return dist.group.WORLD
    ((members, group),) = found.items()
    if group is None:
        raise UsageError(
            f"the model is sharded over {len(members)} of {len(everyone)} ranks in several "
            "dimensions: name the ranks that decide together, Guard(…, group=process_group)"
        )
    return group


def _groups(models: Sequence[nn.Module]) -> list[ProcessGroup]:
    groups: list[ProcessGroup] = [unit.process_group for unit in find_replicas(models)]
    module = sys.modules.get("torch.distributed.fsdp")
    if module is not None:
        groups += [
            unit.process_group
            for model in models
            for unit in model.modules()
            if isinstance(unit, module.FullyShardedDataParallel)
        ]
    return groups


def _is_tensor_parallel(models: Sequence[nn.Module]) -> bool:
    """Whether layers are split over the ranks, and no FSDP2 gives each rank its own data."""
    split = any(sharded_tensors.is_dtensor(p) for model in models for p in model.parameters())
    return split and not any(map(sharded_tensors.parameter_groups, models))


def _meshes(parameters: Iterable[Any]) -> list[Any]:
    meshes = {}
    for parameter in parameters:
        if sharded_tensors.is_dtensor(parameter):
            mesh = parameter.device_mesh
            root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
            meshes[id(root)] = root
    return list(meshes.values())
