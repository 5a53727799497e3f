"""Checkpoints and runs written by hand, so that no test of reading them needs a framework."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64"}


def safetensors(path: Path, tensors: Mapping[str, Any]) -> Path:
    """A file of the safetensors format."""
    header: dict[str, Any] = {}
    body = b""
    for name, values in tensors.items():
        data = np.ascontiguousarray(values)
        raw = data.tobytes()
        header[name] = {
            "dtype": _NAMES[str(data.dtype)],
            "shape": list(data.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)
    return path


def weights(seed: int, *, bad: int = 0) -> dict[str, Any]:
    """Some layers; the first `bad` elements of one of them are NaN."""
    rng = np.random.default_rng(seed)
    made = {
        f"layers.{number}.weight": rng.normal(0, 0.1, (8, 8)).astype("float32")
        for number in range(4)
    }
    made["layers.2.weight"].ravel()[:bad] = math.nan
    return made


def history(last: int, *, nan_from: int | None = None, every: int = 10) -> list[dict[str, Any]]:
    """The rows a Trainer logs."""
    rows = []
    for step in range(every, last + 1, every):
        broken = nan_from is not None and step >= nan_from
        wave = 0.02 * math.sin(step)
        rows.append(
            {
                "loss": math.nan if broken else 2.5 - step / 1000 + wave,
                "grad_norm": math.nan if broken else 1.0 + 3 * wave,
                "learning_rate": 1e-4,
                "epoch": step / 100,
                "step": step,
            }
        )
    return rows


def hf_run(
    folder: Path, *, saves: tuple[int, ...], bad_from: int | None = None, last: int | None = None
) -> Path:
    """A folder as the Trainer leaves it; weights and log are NaN from a step on."""
    for step in saves:
        place = folder / f"checkpoint-{step}"
        place.mkdir(parents=True)
        broken = bad_from is not None and step >= bad_from
        safetensors(place / "model.safetensors", weights(step, bad=64 if broken else 0))
        (place / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        state = {"global_step": step, "logging_steps": 10, "log_history": []}
        state["log_history"] = history(step, nan_from=bad_from)
        (place / "trainer_state.json").write_text(json.dumps(state))
    if last is not None:
        lines = [
            str({key: value for key, value in row.items() if key != "step"})
            for row in history(last, nan_from=bad_from)
        ]
        (folder / "train.log").write_text("\n".join(lines) + "\n")
    return folder
