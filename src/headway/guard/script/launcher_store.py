"""What the ranks of a job agree on before their process group exists."""

from __future__ import annotations

import datetime
import os

import torch.distributed as dist

from headway.errors import UsageError
from headway.torch_adapters.process_groups.rank_group import own_rank

STORE_SECONDS = 60.0
"""Seconds that a rank waits for what rank 0 chose."""


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
