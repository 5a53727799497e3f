"""Several processes that train together over gloo, for the tests of many ranks."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.torch_versions import AVERAGES_SHARDS, SHARDS_ON_CPU

PATIENCE = 120.0
"""Seconds after which a group of processes counts as hanging."""

_context = multiprocessing.get_context("forkserver")
# The server imports torch once; its children are forked from it in no time. It is no test and
# knows where to find what it shall import from its environment alone.
_context.set_forkserver_preload(["support.rank_trainings", "support.resumable_trainings"])
_PATH = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


class RanksFailed(Exception):
    """Some process raised or hung; the message holds what each said."""


def run_ranks(
    work: Callable[..., Any], size: int, *args: Any, timeout: float = 30.0, lone: bool = False
) -> list[Any]:
    """The results of `work(rank, *args)` on each rank, in a process group.

    `timeout` is the process group's own. `lone`: a process that ends without a result gives None
    instead of an error, for the tests in which one dies.
    """
    with tempfile.TemporaryDirectory() as folder:
        members = [
            _context.Process(target=_member, args=(work, rank, size, folder, timeout, args))
            for rank in range(size)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", _PATH)
            for member in members:
                member.start()
        deadline = time.monotonic() + PATIENCE
        for member in members:
            member.join(max(deadline - time.monotonic(), 0.1))
        hung = [rank for rank, member in enumerate(members) if member.is_alive()]
        for rank in hung:
            members[rank].kill()
            members[rank].join()
        results, complaints = [], [f"rank {rank} hung" for rank in hung]
        for rank in range(size):
            file = Path(folder) / f"result{rank}"
            if not file.exists():
                complaints += [] if lone else [f"rank {rank} left no result"]
                results.append(None)
                continue
            result, complaint = pickle.loads(file.read_bytes())
            results.append(result)
            if complaint:
                complaints.append(f"rank {rank}:\n{complaint}")
        if complaints:
            said = "\n".join(complaints)
            if not SHARDS_ON_CPU and "has no attribute 'record_event'" in said:
                pytest.skip("this torch cannot shard on the CPU")
            if not AVERAGES_SHARDS and "Cannot use ReduceOp.AVG with Gloo" in said:
                pytest.skip("this torch cannot shard and replicate on the CPU")
            raise RanksFailed(said)
        return results


def _member(
    work: Callable[..., Any], rank: int, size: int, folder: str, timeout: float, args: Any
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    result, complaint = None, ""
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        result = work(rank, *args)
    except BaseException:
        complaint = traceback.format_exc()
    unfinished = Path(folder) / f"unfinished{rank}"
    unfinished.write_bytes(pickle.dumps((result, complaint)))
    unfinished.rename(Path(folder) / f"result{rank}")
    # Without the farewells of torch: a member that waits for a dead one would hang in them.
    os._exit(0)
