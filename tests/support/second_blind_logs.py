"""The second blind set of logs: what a person sees in the printed curve, and how the log ends.

The expectation of every case was written before the first diagnosis of the set was run. A case names
the verdict (several where a person could argue for either) and the codes that may be the first cause.
A store or folder of several runs also names the verdict of each run.
"""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.external_log_simulators import (
    around,
    cosine,
    falling,
    linear,
    lost_from,
    norms,
)
from support.external_log_writers import (
    clock,
    hf_console,
    hf_rows,
    hf_state,
    megatron,
    save,
    tfevents,
    torchtitan,
)

DATA = Path(__file__).parents[1] / "data"
ENDED = ("HD911", "HD912", "HD913", "HD914", "HD608", "HD607", "HD514", "HD708", "HD808", "HD809")
"""Codes of the ways a run ends."""


@dataclass(frozen=True)
class BlindLog:
    """One log and what is right for it."""

    name: str
    write: Callable[[Path], Path]
    verdicts: tuple[str, ...]
    codes: tuple[str, ...] = ()
    """First causes that are right; empty: any."""
    runs: dict[str, str] = field(default_factory=dict)
    """Verdict of each run of a store or folder, by a part of its name."""
    worst: str = ""
    """Part of the name of the run that comes first."""
    says: str = ""
    """A word that the report must say, whatever its verdict."""


CASES: list[BlindLog] = []


def case(
    *verdicts: str, codes: Sequence[str] = (), runs: dict[str, str] | None = None
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a writer of a log with the verdicts that are right."""

    def add(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CASES.append(BlindLog(write.__name__, write, verdicts, tuple(codes), runs or {}))
        return write

    return add


def rise_to(
    values: Sequence[float], begin: int, end: int, level: float, seed: int = 0, noise: float = 0.02
) -> list[float]:
    """The same up to `begin`, then a ramp to `level` until `end`, then noise around `level`."""
    rng = random.Random(seed)
    start = sum(values[begin - 10 : begin]) / 10
    out = list(values[:begin])
    for i in range(begin, len(values)):
        share = min((i - begin) / max(end - begin, 1), 1.0)
        out.append((start + (level - start) * share) * math.exp(rng.gauss(0, noise)))
    return out


def nanogpt(
    loss: Sequence[float], k: int = 1, extra: Callable[[int], str] | None = None
) -> list[str]:
    out = ["tokens per iteration will be: 491,520", "number of parameters: 123.59M"]
    for i in range(0, len(loss), k):
        more = extra(i) if extra else ""
        out.append(f"iter {i}: loss {loss[i]:.4f}, time {412.3 + i % 9:.2f}ms, mfu 33.21%{more}")
    return out


def plain(loss: Sequence[float], k: int = 1, more: Callable[[int], str] | None = None) -> list[str]:
    return [
        f"step {i + 1} | loss {loss[i]:.4f}{more(i) if more else ''}"
        for i in range(0, len(loss), k)
    ]


def csv(path: Path, columns: dict[str, Sequence[float]], k: int = 1) -> Path:
    names = list(columns)
    count = len(columns[names[0]])
    lines = [",".join(["step", *names])]
    lines += [
        ",".join([str(i), *(f"{columns[n][i]:.6g}" for n in names)]) for i in range(0, count, k)
    ]
    return save(path, lines)


def jsonl(path: Path, columns: dict[str, Sequence[float]], k: int = 1) -> Path:
    count = len(next(iter(columns.values())))
    rows = [
        json.dumps({"step": i, **{n: float(v[i]) for n, v in columns.items()}})
        for i in range(0, count, k)
    ]
    return save(path, rows)


def grow(n: int, first: float, last: float, seed: int = 0, noise: float = 0.002) -> list[float]:
    rng = random.Random(seed)
    return [(first + (last - first) * i / (n - 1)) * (1 + rng.gauss(0, noise)) for i in range(n)]


def mlflow_db(path: Path, runs: dict[str, dict[str, Sequence[float]]]) -> Path:
    """Runs in the order they were started, each with its metrics."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    db.execute(
        "CREATE TABLE runs (run_uuid VARCHAR(32), name VARCHAR(250), status VARCHAR(9), start_time BIGINT, end_time BIGINT)"
    )
    db.execute(
        "CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT, run_uuid VARCHAR(32), step BIGINT, is_nan BOOLEAN)"
    )
    db.execute("CREATE TABLE params (key VARCHAR(250), value VARCHAR(500), run_uuid VARCHAR(32))")
    for number, (name, columns) in enumerate(runs.items()):
        uuid = f"{number:032x}"
        start = 1741687200000 + number * 10_000_000
        db.execute(
            "INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, ?)", (uuid, name, start, start + 1)
        )
        for key, values in columns.items():
            for step, value in enumerate(values):
                bad = math.isnan(value)
                db.execute(
                    "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
                    (key, 0.0 if bad else value, start + step, uuid, step, bad),
                )
    db.commit()
    db.close()
    return path


def trackio_db(path: Path, runs: dict[str, dict[str, Sequence[float]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
    )
    for name, columns in runs.items():
        for step in range(len(next(iter(columns.values())))):
            row = {key: values[step] for key, values in columns.items()}
            shown = json.dumps({k: "NaN" if math.isnan(v) else v for k, v in row.items()})
            db.execute(
                "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)",
                (clock(step), name, step, shown),
            )
    db.commit()
    db.close()
    return path


def mlflow_files(d: Path, name: str, columns: dict[str, Sequence[float]]) -> Path:
    run = d / "mlruns" / "0" / name
    for key, values in columns.items():
        save(
            run / "metrics" / key,
            [f"{1741687200000 + 300 * s} {v} {s}" for s, v in enumerate(values)],
        )
    save(run / "params" / "lr", ["0.001"])
    save(run / "meta.yaml", [f"run_id: {name}", f"run_name: {name}", "status: 3"])
    return d


# 1. The curve ends well above its best, for a long stretch.


@case("findings", codes=("HD104",))
def nanogpt_back_to_its_start_for_good(d: Path) -> Path:
    loss = rise_to(falling(1000, 3.8, 2.7, 1, 0.02), 520, 620, 3.7, 1)
    return save(d / "train.out", nanogpt(loss, 10))


@case("findings", codes=("HD104",))
def csv_a_quarter_above_the_best(d: Path) -> Path:
    loss = rise_to(falling(3000, 4.0, 1.0, 2, 0.01, 0.03), 1500, 2000, 1.4, 2, 0.01)
    return csv(d / "log.csv", {"loss": loss, "lr": [3e-4] * 3000}, 10)


@case("findings", codes=("HD104",))
def jsonl_jump_to_a_higher_plateau(d: Path) -> Path:
    loss = rise_to(falling(2000, 3.0, 1.2, 3, 0.03), 800, 802, 2.2, 3, 0.03)
    return jsonl(d / "metrics.jsonl", {"train/loss": loss}, 2)


@case("findings", codes=("HD104",))
def hf_console_last_third_above(d: Path) -> Path:
    loss = rise_to(falling(1500, 3.2, 1.7, 4, 0.02), 900, 1050, 2.6, 4, 0.02)
    rows = hf_rows(loss, norms(1500, 4), linear(1500, 5e-5, 50), 10)
    return save(d / "console.log", hf_console(rows, 1500))


@case("findings", codes=("HD104",))
def tensorboard_rises_slowly_to_the_end(d: Path) -> Path:
    loss = rise_to(falling(4000, 2.5, 0.8, 5, 0.03), 1600, 4000, 1.7, 5, 0.03)
    return tfevents(
        d / "events.out.tfevents.1.host.1.0",
        {"loss": [(s, loss[s]) for s in range(0, 4000, 20)]},
    )


@case("findings", codes=("HD104",))
def megatron_rises_after_two_thirds(d: Path) -> Path:
    loss = rise_to(falling(3000, 9.0, 2.6, 6, 0.01, 0.05), 2000, 2300, 3.6, 6, 0.01)
    lines = megatron(loss, norms(3000, 6), cosine(3000, 1e-4, 100), 10, 3000)
    return save(d / "slurm-77.out", lines)


@case("findings", codes=("HD104",))
def lightning_epochs_train_loss_rises(d: Path) -> Path:
    loss = rise_to(falling(40, 2.3, 0.5, 7, 0.02, 0.1), 22, 30, 1.4, 7, 0.02)
    lines = ["epoch,step,train_loss"] + [
        f"{e},{(e + 1) * 300 - 1},{v:.5f}" for e, v in enumerate(loss)
    ]
    return save(d / "lightning_logs/version_0/metrics.csv", lines)


@case("findings", codes=("HD104",))
def mlflow_db_rises_for_good(d: Path) -> Path:
    loss = rise_to(falling(800, 2.0, 0.6, 8, 0.03), 400, 470, 1.5, 8, 0.03)
    return mlflow_db(d / "mlflow.db", {"only": {"train_loss": loss}})


@case("findings", codes=("HD104", "HD403"))
def keras_history_worse_than_the_start(d: Path) -> Path:
    loss = rise_to(falling(60, 1.2, 0.4, 9, 0.02, 0.1), 25, 40, 1.9, 9, 0.03)
    lines = ["epoch,accuracy,loss,val_accuracy,val_loss"]
    lines += [f"{e},0.7,{v:.5f},0.68,{v * 1.05:.5f}" for e, v in enumerate(loss)]
    return save(d / "training.csv", lines)


# 2. The loss swings from step to step and makes no progress.


def swinging(n: int, low: float, high: float, seed: int, noise: float = 0.05) -> list[float]:
    rng = random.Random(seed)
    return [(high if i % 2 else low) * math.exp(rng.gauss(0, noise)) for i in range(n)]


@case("findings", codes=("HD115",))
def console_swings_after_early_progress(d: Path) -> Path:
    loss = [*falling(60, 2.4, 0.9, 11, 0.03), *swinging(440, 0.9, 2.6, 11)]
    return save(d / "train.log", plain(loss))


@case("findings", codes=("HD115",))
def csv_swings_from_the_start(d: Path) -> Path:
    loss = [2.3, 2.1, *swinging(300, 1.6, 3.9, 12)]
    return csv(d / "metrics.csv", {"train_loss": loss, "lr": [0.5] * 302})


@case("findings", codes=("HD115",))
def jsonl_swings_late(d: Path) -> Path:
    loss = [*falling(600, 2.5, 0.5, 13, 0.03), *swinging(600, 0.6, 1.9, 13, 0.08)]
    return jsonl(d / "log.jsonl", {"loss": loss})


@case("findings", codes=("HD115",))
def tensorboard_swings_wider_than_the_start(d: Path) -> Path:
    loss = [*falling(100, 2.3, 1.0, 14, 0.02), *swinging(400, 0.9, 3.0, 14)]
    return tfevents(d / "events.out.tfevents.1.h.1.0", {"train/loss": list(enumerate(loss))})


# 3. Memory that grows, under names of the user's own.


@case("findings", codes=("HD802", "HD801"))
def console_cuda_mem_allocated_gb(d: Path) -> Path:
    memory, loss = grow(600, 8.0, 37.0, 21), falling(600, 3, 1, 21)
    return save(
        d / "run.log", plain(loss, 2, lambda i: f" | cuda_mem_allocated_gb {memory[i]:.2f}")
    )


@case("findings", codes=("HD801", "HD802"))
def csv_rss_mb(d: Path) -> Path:
    return csv(
        d / "log.csv", {"loss": falling(900, 3, 1, 22), "rss_mb": grow(900, 4200, 21000, 22)}, 3
    )


@case("findings", codes=("HD802", "HD801"))
def jsonl_vram_used_gib(d: Path) -> Path:
    return jsonl(
        d / "m.jsonl",
        {"loss": falling(1000, 3, 1, 23), "sys/vram_used_gib": grow(1000, 11, 39, 23)},
    )


@case("findings", codes=("HD801", "HD802"))
def jsonl_process_memory_bytes(d: Path) -> Path:
    memory = grow(1000, 3.2e9, 2.9e10, 24)
    return jsonl(
        d / "m.jsonl", {"loss": falling(1000, 3, 1, 24), "process/memory_rss_bytes": memory}, 5
    )


@case("findings", codes=("HD802", "HD801"))
def tensorboard_torch_reserved(d: Path) -> Path:
    loss, memory = falling(2000, 3, 1, 25), grow(2000, 9000, 30000, 25)
    return tfevents(
        d / "events.out.tfevents.1.h.1.0",
        {
            "loss": [(s, loss[s]) for s in range(0, 2000, 10)],
            "perf/torch_cuda_reserved_MB": [(s, memory[s]) for s in range(0, 2000, 10)],
        },
    )


@case("findings", codes=("HD801", "HD802"))
def mlflow_system_memory_megabytes(d: Path) -> Path:
    memory = grow(600, 8000, 60000, 26)
    return mlflow_files(
        d, "abc", {"loss": falling(600, 3, 1, 26), "system/system_memory_usage_megabytes": memory}
    )


@case("findings", codes=("HD801", "HD802"))
def console_host_mem_gib(d: Path) -> Path:
    memory, loss = grow(800, 32.0, 61.5, 27), falling(800, 3, 1, 27)
    return save(d / "run.log", plain(loss, 4, lambda i: f" | host mem: {memory[i]:.1f} GiB"))


@case("findings", codes=("HD802", "HD801"))
def csv_gpu_memory_percent(d: Path) -> Path:
    return csv(
        d / "log.csv",
        {"loss": falling(1000, 3, 1, 28), "gpu_memory_percent": grow(1000, 21, 96, 28)},
        5,
    )


@case("findings", codes=("HD802", "HD801"))
def trackio_gpu_mem_alloc(d: Path) -> Path:
    return trackio_db(
        d / "project.db",
        {"a": {"loss": falling(500, 3, 1, 29), "gpu_mem_alloc_mib": grow(500, 9000, 39000, 29)}},
    )


# 4. How the log ends.


@case("failed", codes=(*ENDED, "HD801"))
def console_killed_after_rss_growth(d: Path) -> Path:
    memory, loss = grow(700, 32.0, 62.0, 31), falling(700, 3, 1, 31)
    lines = plain(loss, 5, lambda i: f" | rss {memory[i]:.1f}GB")
    return save(d / "run.log", [*lines, "Killed"])


@case("failed", codes=ENDED)
def console_killed_plain(d: Path) -> Path:
    return save(d / "run.log", [*nanogpt(falling(500, 9, 3, 32), 5), "Killed"])


@case("failed", codes=ENDED)
def slurm_oom_kill_event(d: Path) -> Path:
    lines = plain(falling(400, 3, 1, 33))
    return save(
        d / "slurm-1.out",
        [
            *lines,
            "slurmstepd: error: Detected 1 oom_kill event in StepId=9581.0. Some of the step tasks have been OOM Killed.",
            "srun: error: node012: task 0: Out Of Memory",
        ],
    )


@case("failed", codes=ENDED)
def traceback_cuda_out_of_memory(d: Path) -> Path:
    return save(
        d / "out.txt",
        [
            *plain(falling(300, 3, 1, 34)),
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 88, in <module>',
            "    loss = model(x, y)",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.12 GiB is free.",
        ],
    )


@case("failed", codes=ENDED)
def traceback_key_error(d: Path) -> Path:
    return save(
        d / "out.txt",
        [
            *plain(falling(300, 3, 1, 35)),
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 51, in <module>',
            "    y = batch['label']",
            "KeyError: 'label'",
        ],
    )


@case("failed", codes=ENDED)
def segmentation_fault(d: Path) -> Path:
    return save(d / "out.txt", [*plain(falling(300, 3, 1, 36)), "Segmentation fault (core dumped)"])


@case("failed", codes=ENDED)
def nccl_watchdog_timeout(d: Path) -> Path:
    return save(
        d / "out.log",
        [
            *torchtitan(falling(400, 9, 4, 37), norms(400, 37), 10),
            "[rank3]:[E311 10:22:11.112 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8121, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600071 milliseconds before timing out.",
            "[rank3]:[E311 10:22:12.001 ProcessGroupNCCL.cpp:1785] To avoid data inconsistency, we are taking the entire process down.",
        ],
    )


@case("failed", codes=ENDED)
def torchrun_child_failed(d: Path) -> Path:
    return save(
        d / "out.log",
        [
            *plain(falling(400, 9, 4, 38), 10),
            "E0311 10:22:11.112000 140 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python3",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "train.py FAILED",
        ],
    )


@case("failed", codes=ENDED)
def data_loader_worker_killed(d: Path) -> Path:
    return save(
        d / "out.log",
        [
            *plain(falling(400, 9, 4, 39), 5),
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 20, in <module>',
            "    for x, y in loader:",
            "RuntimeError: DataLoader worker (pid 3121) is killed by signal: Killed. ",
        ],
    )


@case("failed", codes=ENDED)
def no_space_left(d: Path) -> Path:
    return save(
        d / "out.log",
        [
            *plain(falling(400, 9, 4, 40), 5),
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 99, in <module>',
            "    torch.save(model.state_dict(), path)",
            "OSError: [Errno 28] No space left on device",
        ],
    )


@case("failed", "interrupted")
def slurm_time_limit(d: Path) -> Path:
    return save(
        d / "slurm-2.out",
        [
            *plain(falling(400, 3, 1, 41)),
            "slurmstepd: error: *** JOB 5121 ON node7 CANCELLED AT 2025-03-11T10:00:00 DUE TO TIME LIMIT ***",
        ],
    )


@case("interrupted")
def keyboard_interrupt(d: Path) -> Path:
    return save(
        d / "out.txt",
        [
            *plain(falling(300, 3, 1, 42)),
            "^CTraceback (most recent call last):",
            '  File "/home/u/train.py", line 51, in <module>',
            "    loss.backward()",
            "KeyboardInterrupt",
        ],
    )


# 5. Stores and folders of several runs.


@case("findings", codes=("HD101",), runs={"good": "healthy", "dead": "findings"})
def mlflow_db_newest_is_healthy(d: Path) -> Path:
    return mlflow_db(
        d / "mlflow.db",
        {
            "dead": {"loss": lost_from(falling(200, 2, 1, 51), 90)},
            "good": {"loss": falling(200, 2, 1, 52)},
        },
    )


@case("findings", codes=("HD101",), runs={"aaa": "healthy", "bbb": "findings", "ccc": "healthy"})
def mlflow_files_one_of_three(d: Path) -> Path:
    mlflow_files(d, "aaa", {"loss": falling(200, 2, 1, 53)})
    mlflow_files(d, "bbb", {"loss": lost_from(falling(200, 2, 1, 54), 120)})
    return mlflow_files(d, "ccc", {"loss": falling(200, 2, 1, 55)})


@case("findings", codes=("HD104",), runs={"low-lr": "healthy", "high-lr": "findings"})
def trackio_two_runs(d: Path) -> Path:
    bad = rise_to(falling(600, 2.5, 0.8, 56, 0.03), 250, 320, 2.4, 56, 0.03)
    return trackio_db(
        d / "project.db",
        {"high-lr": {"loss": bad}, "low-lr": {"loss": falling(600, 2.5, 0.8, 57)}},
    )


@case("findings", codes=("HD101",), runs={"lr_1e-4": "healthy", "lr_1e-1": "findings"})
def tensorboard_folder_of_four(d: Path) -> Path:
    for number, name in enumerate(("lr_1e-4", "lr_1e-3", "lr_1e-2", "lr_1e-1")):
        loss = falling(300, 2, 1, 58 + number)
        if name == "lr_1e-1":
            loss = lost_from(loss, 40)
        tfevents(d / "runs" / name / "events.out.tfevents.1.h.1.0", {"loss": list(enumerate(loss))})
    return d / "runs"


@case("findings", codes=("HD101",), runs={"a1": "healthy", "b2": "findings"})
def wandb_folder_of_two(d: Path) -> Path:
    for name, kept in (("a1", "healthy"), ("b2", "faulty")):
        folder = d / "wandb" / f"offline-run-20250311_10000{name[1]}-{name}"
        folder.mkdir(parents=True)
        shutil.copy(DATA / "wandb" / f"{kept}.wandb", folder / f"run-{name}.wandb")
    return d / "wandb"


@case("findings", codes=("HD101",), runs={"version_0": "findings", "version_1": "healthy"})
def lightning_two_versions(d: Path) -> Path:
    for at, loss in enumerate((lost_from(falling(200, 2, 1, 62), 80), falling(200, 2, 1, 63))):
        lines = ["epoch,step,train_loss"] + [f"0,{s},{v}" for s, v in enumerate(loss)]
        save(d / f"lightning_logs/version_{at}/metrics.csv", lines)
    return d / "lightning_logs"


@case("failed", codes=ENDED, runs={"one": "failed", "two": "healthy"})
def console_logs_one_killed(d: Path) -> Path:
    save(d / "one" / "train.log", [*plain(falling(300, 3, 1, 64)), "Killed"])
    save(d / "two" / "train.log", plain(falling(300, 3, 1, 65)))
    return d


@case("healthy", runs={"run_a": "healthy", "run_b": "healthy"})
def csv_two_healthy_runs(d: Path) -> Path:
    csv(d / "run_a" / "log.csv", {"loss": falling(300, 3, 1, 66)})
    csv(d / "run_b" / "log.csv", {"loss": falling(300, 3, 1, 67)})
    return d


# 6. Healthy runs that look like the above at a glance.


@case("healthy")
def warm_restarts_recover_each_time(d: Path) -> Path:
    loss = falling(1500, 3.0, 1.0, 71, 0.03)
    loss = [v * (1 + 0.3 * math.exp(-(i % 500) / 60) * (i >= 500)) for i, v in enumerate(loss)]
    return csv(d / "log.csv", {"loss": loss}, 5)


@case("healthy")
def ends_three_percent_above_its_best(d: Path) -> Path:
    loss = rise_to(falling(2000, 3.0, 1.5, 72, 0.05), 1400, 1500, 1.74, 72, 0.05)
    return jsonl(d / "log.jsonl", {"loss": loss}, 5)


@case("healthy")
def batch_of_one_very_noisy(d: Path) -> Path:
    rng = random.Random(73)
    loss = [v * math.exp(rng.gauss(0, 0.6)) for v in falling(1200, 2.5, 1.2, 73, 0.01)]
    return save(d / "train.log", plain(loss))


@case("healthy")
def two_tasks_in_alternation_with_progress(d: Path) -> Path:
    loss = [v * (0.6 if i % 2 else 1.6) for i, v in enumerate(falling(800, 3.0, 0.6, 74))]
    return save(d / "train.log", plain(loss))


@case("healthy")
def memory_fills_a_cache_and_stays(d: Path) -> Path:
    memory = [12000 + 8000 * (1 - math.exp(-i / 60)) for i in range(800)]
    return csv(d / "log.csv", {"loss": falling(800, 3, 1, 75), "gpu_mem_alloc_mib": memory}, 2)


@case("healthy")
def memory_saw_tooth(d: Path) -> Path:
    memory = [4000 + 40 * (i % 100) for i in range(1000)]
    return csv(d / "log.csv", {"loss": falling(1000, 3, 1, 76), "rss_mb": memory}, 5)


@case("healthy")
def tokens_seen_grows_and_is_no_memory(d: Path) -> Path:
    tokens = [32768.0 * i for i in range(1, 601)]
    return csv(
        d / "log.csv",
        {"loss": falling(600, 3, 1, 77), "tokens": tokens, "gb_read": [t / 1e9 for t in tokens]},
    )


@case("healthy")
def replay_memory_size_is_no_memory_leak(d: Path) -> Path:
    size = [min(100.0 * i, 50000.0) for i in range(600)]
    return csv(d / "log.csv", {"loss": falling(600, 3, 1, 78), "replay_memory_size": size})


@case("healthy")
def traceback_in_the_middle_caught(d: Path) -> Path:
    lines = plain(falling(400, 3, 1, 79))
    lines[200:200] = [
        "Traceback (most recent call last):",
        '  File "/home/u/data.py", line 12, in load',
        "    img = Image.open(path)",
        "OSError: image file is truncated (3 bytes not processed)",
        "skipping sample 4711",
    ]
    return save(d / "out.txt", lines)


@case("healthy")
def killed_in_a_message_of_its_own(d: Path) -> Path:
    lines = plain(falling(400, 3, 1, 80))
    lines.insert(50, "killed 3 stale workers from an earlier job")
    return save(d / "out.txt", [*lines, "Training finished. Best loss 1.02"])


@case("healthy")
def crashed_then_resumed_to_the_end(d: Path) -> Path:
    loss = falling(400, 3, 1, 81)
    first = [f"step {i + 1} | loss {loss[i]:.4f}" for i in range(200)]
    rest = [f"step {i + 1} | loss {loss[i]:.4f}" for i in range(180, 400)]
    return save(
        d / "out.txt",
        [
            *first,
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 51, in <module>',
            "ConnectionError: lost the bucket",
            "Resuming from checkpoint at step 180",
            *rest,
            "done",
        ],
    )


@case("healthy")
def validation_rises_training_falls(d: Path) -> Path:
    loss = falling(60, 1.2, 0.1, 82, 0.02, 0.2)
    val = [0.9 - 0.02 * e if e < 15 else 0.6 + 0.02 * (e - 15) for e in range(60)]
    return csv(d / "log.csv", {"loss": loss, "val_loss": val})


@case("healthy")
def one_cycle_hump_then_falls(d: Path) -> Path:
    loss = falling(2000, 2.4, 0.5, 83, 0.03)
    loss = [v * (1 + 0.35 * math.exp(-(((i - 500) / 150) ** 2))) for i, v in enumerate(loss)]
    return tfevents(
        d / "events.out.tfevents.1.h.1.0", {"loss": [(s, loss[s]) for s in range(0, 2000, 10)]}
    )


@case("healthy")
def harder_data_then_falls_again(d: Path) -> Path:
    loss = [*falling(800, 2.5, 0.6, 84), *falling(1200, 2.2, 0.9, 85)]
    return jsonl(d / "log.jsonl", {"loss": loss}, 4)


@case("healthy")
def hf_state_healthy(d: Path) -> Path:
    rows = hf_rows(falling(800, 2.4, 0.9, 86), norms(800, 86), linear(800, 5e-5, 100), 10)
    return hf_state(d / "trainer_state.json", rows, 10, 800)


@case("healthy")
def cosine_annealed_flat_end(d: Path) -> Path:
    loss = [*falling(1500, 3.0, 1.4, 87, 0.04), *around(1500, 1.62, 87, 0.04)]
    return csv(d / "log.csv", {"loss": loss, "lr": cosine(3000, 1e-3, 100)}, 10)


# 7. Too little to say anything.


@case("unknown")
def three_rows_only(d: Path) -> Path:
    return save(d / "train.log", plain([2.31, 2.29, 2.3]))


@case("unknown")
def four_epochs_only(d: Path) -> Path:
    return save(d / "train.log", [f"epoch {e} loss {2.0 - 0.1 * e:.3f}" for e in range(4)])


@case("unknown")
def learning_rate_alone(d: Path) -> Path:
    return csv(d / "log.csv", {"lr": cosine(300, 1e-3, 20)})


@case("unknown")
def step_time_alone(d: Path) -> Path:
    return jsonl(d / "log.jsonl", {"step_time": around(200, 0.31, 91)})


# 8. Bad numbers in less common containers.


@case("findings", codes=("HD101",))
def utf16_csv_nan(d: Path) -> Path:
    loss = lost_from(falling(300, 3, 1, 92), 150)
    lines = ["step,loss", *(f"{i},{v}" for i, v in enumerate(loss))]
    path = d / "log.csv"
    path.write_bytes("\r\n".join(lines).encode("utf-16"))
    return path


@case("findings", codes=("HD101",))
def windows_1252_console_nan(d: Path) -> Path:
    loss = lost_from(falling(300, 3, 1, 93), 150)
    path = d / "train.log"
    path.write_bytes("\r\n".join(["Gerät: Köln-01", *plain(loss)]).encode("cp1252"))
    return path


@case("findings", "failed", codes=("HD101",))
def nan_then_traceback(d: Path) -> Path:
    loss = lost_from(falling(300, 3, 1, 94), 280)
    return save(
        d / "train.log",
        [
            *plain(loss),
            "Traceback (most recent call last):",
            '  File "t.py", line 3',
            "ValueError: loss is NaN",
        ],
    )


@case("findings", codes=("HD101", "HD201"))
def trackio_nan(d: Path) -> Path:
    loss = lost_from([*falling(200, 3, 1, 95)], 150)
    return trackio_db(d / "project.db", {"only": {"loss": loss}})
