"""Makes the files of this folder with the real writers (torch 2.13, tensorboard 2.21).

    python tests/data/tensorboard/make.py

`expected.json` is what TensorBoard's own reader says of each file, nothing left out.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

HERE = Path(__file__).parent


def loss_at(step: int, bad: int | None) -> float:
    return math.nan if bad is not None and step >= bad else 2.5 * 0.99**step


def one(name: str, bad: int | None) -> None:
    """Scalars, settings, a histogram and a text, as people log them."""
    writer = SummaryWriter(str(HERE), filename_suffix=f".{name}")
    writer.add_text("note", "a run")
    for step in range(120):
        writer.add_scalar("train/loss", loss_at(step, bad), step)
        writer.add_scalar("lr", 1e-3, step)
        if step % 40 == 0:
            writer.add_scalar("val/loss", loss_at(step, bad) + 0.1, step)
            writer.add_histogram("weights", np.arange(5.0), step)
    writer.close()
    rename(name)


def trainer() -> None:
    """As the Hugging Face Trainer's callback writes: its arguments as text, then `train/…`."""
    writer = SummaryWriter(str(HERE), filename_suffix=".trainer")
    told = {"logging_steps": 10, "logging_nan_inf_filter": True, "max_grad_norm": 1.0, "bf16": True}
    writer.add_text("args", json.dumps(told, indent=2))
    _, start, _ = hparams({"lr": 1e-3, "optimizer": "adamw", "nesterov": False}, {})
    writer.file_writer.add_summary(start)
    for step in range(10, 110, 10):
        writer.add_scalar("train/loss", loss_at(step, None), step)
        writer.add_scalar("train/grad_norm", 1.0, step)
    writer.close()
    rename("trainer")


def restarted() -> None:
    """A run that died of NaN at step 60, and was started again from step 40."""
    for part, (begin, end, bad) in enumerate([(0, 70, 60), (40, 90, None)]):
        writer = SummaryWriter(
            str(HERE), filename_suffix=f".restarted{part}", purge_step=begin or None
        )
        for step in range(begin, end):
            writer.add_scalar("loss", loss_at(step, bad), step, walltime=1e9 + 1000 * part + step)
        writer.close()
        rename(f"restarted{part}")


def tensors() -> None:
    """Scalars kept as tensors, as TensorFlow 2 writes them, of several types."""
    writer = EventFileWriter(str(HERE), filename_suffix=".tensors")
    for step in range(20):
        for kind in ("float32", "float64", "float16", "int64"):
            value = np.asarray(math.nan if kind != "int64" and step == 7 else step / 2, kind)
            metadata = SummaryMetadata()
            metadata.plugin_data.plugin_name = "scalars"
            metadata.data_class = 1
            tensor = tensor_util.make_tensor_proto(value)
            summary = Summary(value=[Summary.Value(tag=kind, tensor=tensor, metadata=metadata)])
            writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()
    rename("tensors")


def rename(name: str) -> None:
    (found,) = HERE.glob(f"events.out.*.{name}")
    found.rename(HERE / f"events.out.tfevents.{name}")


def said(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a file."""
    size: dict[str, Any] = {"scalars": 0, "tensors": 0}
    reader = EventAccumulator(str(path), size_guidance=size)
    reader.Reload()
    found = {
        tag: [(p.step, p.value) for p in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }
    for tag in reader.Tags()["tensors"]:
        if reader.summary_metadata[tag].plugin_data.plugin_name == "scalars":
            found[tag] = [
                (p.step, float(tensor_util.make_ndarray(p.tensor_proto)))
                for p in reader.Tensors(tag)
            ]
    return found


if __name__ == "__main__":
    for old in HERE.glob("events.out.*"):
        old.unlink()
    one("healthy", None)
    one("faulty", 90)
    trainer()
    restarted()
    tensors()
    everything = {path.name: said(path) for path in sorted(HERE.glob("events.out.*"))}
    text = json.dumps(everything, separators=(",", ":"))
    (HERE / "expected.json").write_text(text + "\n")
