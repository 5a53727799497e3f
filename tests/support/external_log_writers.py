"""Writers of logs the way well-known trainers write them, banners and prefixes included."""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from support.external_log_simulators import every, window

Lines = list[str]


def save(path: Path, lines: Lines, end: str = "\n") -> Path:
    """Write the lines and give the path back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(end.join(lines) + end, encoding="utf-8", newline="")
    return path


def clock(i: int, per: float = 1.3, sep: str = "-") -> str:
    """A time stamp `i` steps after the start."""
    s = int(i * per) + 36000
    return f"2025{sep}03{sep}{11 + s // 86400:02d} {s // 3600 % 24:02d}:{s // 60 % 60:02d}:{s % 60:02d}"


def hf_rows(
    loss: list[float],
    norm: list[float] | None,
    rate: list[float],
    k: int,
    filtered: bool = True,
    per_epoch: int = 400,
) -> list[dict[str, Any]]:
    """log_history as Hugging Face's Trainer keeps it; `filtered` is logging_nan_inf_filter."""
    rows = []
    for step in every(len(loss), k):
        if filtered:  # a non-finite step adds the mean of the window so far, as the Trainer does
            total = 0.0
            for j, value in enumerate(loss[step - k : step]):
                total += value if math.isfinite(value) else total / (1 + j)
            value = total / k
        else:
            value = window(loss, step, k)
        row: dict[str, Any] = {"epoch": round(step / per_epoch, 2), "loss": round(value, 4)}
        if norm is not None:
            row["grad_norm"] = norm[step - 1]
        row["learning_rate"] = rate[step - 1]
        row["step"] = step
        rows.append(row)
    return rows


def with_evals(
    rows: list[dict[str, Any]], gap: int, evals: dict[int, float] | None = None
) -> list[dict[str, Any]]:
    """Evaluation rows between the training rows, every `gap` steps."""
    out = []
    for row in rows:
        out.append(row)
        if row["step"] % gap == 0:
            value = (evals or {}).get(row["step"], row["loss"] * 1.05 + 0.01)
            out.append(
                {
                    "epoch": row["epoch"],
                    "eval_accuracy": 0.71,
                    "eval_loss": value,
                    "eval_runtime": 12.3391,
                    "eval_samples_per_second": 81.04,
                    "eval_steps_per_second": 10.13,
                    "step": row["step"],
                }
            )
    return out


def hf_state(path: Path, rows: list[dict[str, Any]], k: int, total: int, done: bool = True) -> Path:
    """trainer_state.json."""
    last = rows[-1]["step"]
    history = list(rows)
    if done:
        history.append(
            {
                "epoch": rows[-1]["epoch"],
                "step": last,
                "total_flos": 1.05e17,
                "train_loss": 1.5,
                "train_runtime": 2411.2,
                "train_samples_per_second": 13.2,
                "train_steps_per_second": 0.41,
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "best_metric": None,
                "best_model_checkpoint": None,
                "epoch": rows[-1]["epoch"],
                "eval_steps": 500,
                "global_step": last,
                "is_hyper_param_search": False,
                "is_local_process_zero": True,
                "is_world_process_zero": True,
                "log_history": history,
                "logging_steps": k,
                "max_steps": total,
                "num_input_tokens_seen": 0,
                "num_train_epochs": 3,
                "save_steps": 500,
                "stateful_callbacks": {},
                "total_flos": 1.05e17,
                "train_batch_size": 8,
                "trial_name": None,
                "trial_params": None,
            },
            indent=2,
        )
    )
    return path


def hf_console(rows: list[dict[str, Any]], total: int, strings: bool = False) -> Lines:
    """The Trainer's own prints, between tqdm bars."""
    out = [
        "Map: 100%|██████████| 12000/12000 [00:03<00:00, 3721.91 examples/s]",
        "Some weights of BertForSequenceClassification were not initialized from the model checkpoint"
        " at bert-base-uncased and are newly initialized: ['classifier.bias', 'classifier.weight']",
        "You should probably TRAIN this model on a down-stream task to be able to use it.",
        "/usr/lib/python3.11/site-packages/torch/utils/checkpoint.py:429: UserWarning: use_reentrant",
    ]
    for row in rows:
        step = row["step"]
        share = int(100 * step / total)
        shown = {key: value for key, value in row.items() if key not in ("epoch", "step")}
        shown["epoch"] = row["epoch"]
        if strings:
            shown = {
                key: f"{v:.4g}" if isinstance(v, float) else str(v) for key, v in shown.items()
            }
        bar = f"{share:3d}%|{'█' * (share // 10):<10}| {step}/{total} [00:{step % 60:02d}<08:20,  1.94it/s]"
        out.append(f"\r{bar}{' ' * 9}\r{' ' * 70}\r{shown}")
        out.append(f"\r{bar}")
    out.append(
        "{'train_runtime': 512.3, 'train_samples_per_second': 15.6, 'train_loss': 1.2, 'epoch': 3.0}"
    )
    return out


def megatron(
    loss: list[float],
    norm: list[float],
    rate: list[float],
    k: int,
    total: int,
    scale: list[float] | None = None,
    skipped: list[int] | None = None,
    nans: list[int] | None = None,
    ms: list[float] | None = None,
    first: int = 0,
    banner: Lines | None = None,
) -> Lines:
    """Megatron-LM: a line every `k` iterations, counts since the last line."""
    out = banner or [
        "using world size: 64, data-parallel size: 8, tensor-model-parallel size: 8",
        "------------------------ arguments ------------------------",
        "  adam_beta1 ...................................... 0.9",
        "  clip_grad ....................................... 1.0",
        "  lr .............................................. 0.00015",
        f"  train_iters ..................................... {total}",
        "-------------------- end of arguments ---------------------",
        "> building GPT2BPETokenizer tokenizer ...",
        "training ...",
        "[before the start of training step] datetime: 2025-03-11 10:00:00",
    ]
    for step in every(len(loss), k):
        i = step - 1
        finite = [v for v in loss[step - k : step] if math.isfinite(v)]
        shown = f"{sum(finite) / len(finite):.6E}" if finite else "nan"
        if nans is None and len(finite) < k:
            shown = "nan"
        sk = sum(skipped[step - k : step]) if skipped else 0
        nn = sum(nans[step - k : step]) if nans else 0
        out.append(
            f" [{clock(step)}] iteration {first + step:8d}/{total:8d} | consumed samples: "
            f"{(first + step) * 256:12d} | elapsed time per iteration (ms): {(ms[i] if ms else 1301.2 + i % 7):.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): 187.3 | learning rate: {rate[i]:.6E} | global batch size:   256 | "
            f"lm loss: {shown} | loss scale: {scale[i] if scale else 1.0:.1f} | grad norm: {norm[i]:.3f} | "
            f"number of skipped iterations: {sk:3d} | number of nan iterations: {nn:3d} |"
        )
        if step % (10 * k) == 0:
            out.append(
                f"saving checkpoint at iteration {first + step:7d} to /ckpt in torch_dist format"
            )
            out.append(
                "(min, max) time across ranks (ms):\n    save-checkpoint ......: (8123.22, 8124.10)"
            )
    return out


def torchtitan(
    loss: list[float], norm: list[float], k: int, memory: list[float] | None = None
) -> Lines:
    """torchtitan, under torchrun's prefix and with colours."""
    pre = "[rank0]:"
    out = [
        f"{pre}[titan] {clock(0)},101 - root - INFO - Starting job: Llama 3 8B training",
        f"{pre}[titan] {clock(0)},301 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        f"{pre}[titan] {clock(0)},801 - root - INFO - Training starts at step 1, with local batch size 2,"
        " global batch size 16, sequence length 8192, total steps 1000 (warmup 200)",
    ]
    for step in [1, *every(len(loss), k)]:
        gib = memory[step - 1] if memory else 47.48
        out.append(
            f"{pre}[titan] {clock(step)},{step % 1000:03d} - root - INFO - \x1b[31mstep: {step:2}  "
            f"\x1b[32mloss: {loss[step - 1]:7.4f}  \x1b[38;2;180;60;0mgrad_norm: {norm[step - 1]:7.4f}  "
            f"\x1b[38;2;54;234;195mmemory: {gib:5.2f}GiB({gib / 79.1:.2%})  \x1b[34mtps: 7,{step % 900 + 100}  "
            f"\x1b[36mtflops: 412.38  \x1b[35mmfu: 41.70%\x1b[39m"
        )
    return out


def tfevents(path: Path, columns: dict[str, list[tuple[int, float]]]) -> Path:
    """A TensorBoard event file: TFRecord framing and the few protobuf fields a scalar needs."""

    def varint(n: int) -> bytes:
        out = bytearray()
        while n > 0x7F:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)
        return bytes(out)

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)

    def masked(data: bytes) -> bytes:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def record(data: bytes) -> bytes:
        head = struct.pack("<Q", len(data))
        return head + masked(head) + data + masked(data)

    start = 1741687200.0
    blob = record(b"\x09" + struct.pack("<d", start) + field(3, b"brain.Event:2"))
    events = sorted((step, tag, v) for tag, points in columns.items() for step, v in points)
    for step, tag, v in events:
        value = field(1, tag.encode()) + b"\x15" + struct.pack("<f", v)
        event = b"\x09" + struct.pack("<d", start + step) + b"\x10" + varint(step)
        blob += record(event + field(5, field(1, value)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
    return path
