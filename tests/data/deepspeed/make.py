"""The checkpoints here: `python make.py`, with deepspeed 0.19.8 and torch 2.13.0, on the CPU.

Two processes train a small network for three steps. `healthy` is that at ZeRO stages 0, 1 and 3;
in `sick` a master weight of the second process was NaN when it was saved (a NaN in the data would
not do: DeepSpeed skips such steps). Only the scripts that DeepSpeed puts beside are left out.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).resolve().parent
CASES = [("healthy", 0), ("healthy", 1), ("healthy", 3), ("sick", 1), ("sick", 3)]


def train(rank: int) -> None:
    """What one of the two processes does."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29617",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_SIZE": "2",
    }
    import deepspeed

    # A faster reduction, compiled for minutes at its first use: nothing that a checkpoint shows.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    for kind, stage in CASES:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        config = {
            "train_batch_size": 8,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config
        )
        for _ in range(3):
            inputs = torch.randn(4, 8, dtype=torch.bfloat16)
            engine.backward(engine(inputs).float().square().mean())
            engine.step()
        if kind == "sick" and rank == 1:
            held = (
                "single_partition_of_fp32_groups" if stage == 1 else "fp32_partitioned_groups_flat"
            )
            with torch.no_grad():
                getattr(engine.optimizer, held)[0][3] = float("nan")
        engine.save_checkpoint(str(HERE / f"{kind}-zero{stage}"), tag="global_step3")


def main() -> None:
    for kind, stage in CASES:
        shutil.rmtree(HERE / f"{kind}-zero{stage}", ignore_errors=True)
    torch.multiprocessing.spawn(train, nprocs=2)
    for script in HERE.glob("*/zero_to_*.py"):
        script.unlink()


if __name__ == "__main__":
    main()
