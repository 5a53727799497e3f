"""Makes the files of this folder with the real client, offline (wandb 0.31).

    python tests/data/wandb/make.py

There is no reader of the client's own for these files any more: `expected.json` is what was logged.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
import wandb

HERE = Path(__file__).parent


def run(name: str, rows: list[tuple[int | None, dict[str, Any]]], config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = wandb.Settings(
            console="off", host="host", x_disable_stats=True, x_disable_meta=True, disable_git=True
        )
        run = wandb.init(dir=folder, project="p", config=config, settings=settings)
        for step, row in rows:
            run.log(row, step=step)
        if name == "faulty":
            run.alert("loss", "the loss is NaN")
        run.finish()
        time.sleep(1)  # another process writes the last of it
        (found,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
        shutil.copy(found, HERE / f"{name}.wandb")


def loss_at(step: int, bad: int | None) -> float:
    return math.nan if bad is not None and step >= bad else 2.5 * 0.99**step


def plain(bad: int | None) -> list[tuple[int | None, dict[str, Any]]]:
    return [(step, {"loss": loss_at(step, bad), "opt": {"lr": 1e-3}}) for step in range(60)]


def trainer() -> list[tuple[int | None, dict[str, Any]]]:
    return [
        (
            None,
            {
                "train/loss": loss_at(step, None),
                "train/grad_norm": math.inf if step == 50 else 1.0,
                "train/global_step": step,
            },
        )
        for step in range(10, 110, 10)
    ]


if __name__ == "__main__":
    told = {
        "lr": 1e-3,
        "batch_size": 8,
        "name": "x",
        "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8},
    }
    run("healthy", plain(None), told)
    run("faulty", plain(40), told)
    run("trainer", trainer(), {"logging_steps": 10, "logging_nan_inf_filter": True})
    expected = {
        "healthy": [row["loss"] for _, row in plain(None)],
        "faulty": [row["loss"] for _, row in plain(40)],
    }
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")
