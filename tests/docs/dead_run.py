"""The folder of a Hugging Face run that NaN killed at step 130, as the Trainer leaves one behind.

Written by hand, in a tenth of a second: the formats are what the real one writes (the tests of the
readers see to that), and a page needs the folder, not the training.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

STEPS, EVERY, ONSET, SAVES = 160, 5, 130, (50, 100, 150, 160)


def make_outputs(folder: Path) -> None:
    """`checkpoint-*`, `console.log` and `args.json`."""
    folder.mkdir(parents=True)
    rows = list(_rows())
    (folder / "args.json").write_text(
        json.dumps(
            {
                "learning_rate": 0.01,
                "warmup_steps": 10,
                "max_grad_norm": 1.0,
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": 1,
            }
        )
    )
    (folder / "console.log").write_text("".join(_console(row) for row in rows))
    for step in SAVES:
        _save(folder / f"checkpoint-{step}", step, [row for row in rows if row["step"] <= step])


def make_log(path: Path) -> None:
    """The console of such a run alone."""
    path.write_text("".join(_console(row) for row in _rows()))


def _rows() -> list[dict[str, Any]]:
    chance = random.Random(0)
    rows = []
    for step in range(EVERY, STEPS + 1, EVERY):
        dead = step >= ONSET
        loss = 1.4 * math.exp(-step / 70) * (1 + 0.03 * chance.gauss(0, 1))
        rows.append(
            {
                # The Trainer's filter leaves a NaN loss out of its mean: of nothing else, 0.
                "loss": 0.0 if step > ONSET else loss / (2 if dead else 1),
                "grad_norm": math.nan if dead else 0.6 * math.exp(0.2 * chance.gauss(0, 1)),
                "learning_rate": 0.01 * min(step / 10, (STEPS + 10 - step) / STEPS),
                "epoch": step / 80,
                "step": step,
            }
        )
    return rows


def _console(row: dict[str, Any]) -> str:
    said = {key: f"{value:.4g}" for key, value in row.items() if key != "step"}
    return f"{said}\n"


def _save(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir()
    torch.manual_seed(step)
    shapes = {"a.weight": (24, 16), "a.bias": (24,), "b.weight": (4, 24), "b.bias": (4,)}
    dead = step > ONSET
    weights = {name: torch.randn(shape) * 0.1 for name, shape in shapes.items()}
    if dead:
        weights = {name: torch.full_like(value, math.nan) for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    state = {
        number: {
            "step": torch.tensor(float(step)),
            "exp_avg": value.clone() * 0.01,
            "exp_avg_sq": value.square() * 0.01,
        }
        for number, value in enumerate(weights.values())
    }
    group = {
        "lr": 0.01,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "params": [0, 1, 2, 3],
    }
    torch.save({"state": state, "param_groups": [group]}, folder / "optimizer.pt")
    told = {"global_step": step, "max_steps": STEPS, "logging_steps": EVERY, "log_history": rows}
    (folder / "trainer_state.json").write_text(json.dumps(told))
