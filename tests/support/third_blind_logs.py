"""The third blind set of logs: its writers, and the healthy runs that look ill.

As in the second set, the expectation of every case was written before its first diagnosis, by
somebody who had not read the readers or the checks. `third_blind_logs_ill` holds the other half.
"""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import gzip
import json
import math
import random
import sqlite3
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from support.external_log_simulators import around, bump, cosine, falling, linear, norms
from support.external_log_writers import clock, hf_console, hf_rows, hf_state, megatron, save
from support.external_log_writers import tfevents as tensorboard
from support.second_blind_logs import BlindLog, csv, jsonl, nanogpt, plain, trackio_db

THIRD: list[BlindLog] = []


def case(
    *verdicts: str,
    codes: Sequence[str] = (),
    runs: dict[str, str] | None = None,
    worst: str = "",
    says: str = "",
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a log of the third set with the verdicts that are right."""

    def add(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        THIRD.append(
            BlindLog(write.__name__, write, verdicts, tuple(codes), runs or {}, worst, says)
        )
        return write

    return add


def lightning_bars(loss: Sequence[float], per_epoch: int) -> str:
    """Lightning's tqdm bar, rewritten with carriage returns."""
    out = "GPU available: True (cuda), used: True\n"
    for i, value in enumerate(loss):
        at = i % per_epoch + 1
        bar = "█" * (10 * at // per_epoch)
        out += (
            f"\rEpoch {i // per_epoch}: {100 * at // per_epoch:3d}%|{bar:<10}| {at}/{per_epoch}"
            f" [00:{at % 60:02d}<00:09, 17.31it/s, v_num=3, train_loss={value:.3f}]"
        )
        if at == per_epoch:
            out += "\n"
    return out


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="")
    return path


def fairseq_json(loss: Sequence[float], gnorm: Sequence[float], k: int = 100) -> list[str]:
    out = ["2025-03-11 10:00:00 | INFO | fairseq_cli.train | task: TranslationTask"]
    for i, value in enumerate(loss):
        row = {
            "epoch": 1 + i // 20,
            "update": round(i / 20, 3),
            "loss": f"{value:.3f}",
            "nll_loss": f"{value * 0.93:.3f}",
            "ppl": f"{2 ** min(value, 30):.2f}" if math.isfinite(value) else "nan",
            "wps": "31231.9",
            "ups": "8.91",
            "wpb": "3506.1",
            "bsz": "152.7",
            "num_updates": str((i + 1) * k),
            "lr": f"{min(5e-4, 1.25e-7 * (i + 1) * k):.4g}",
            "gnorm": f"{gnorm[i]:.3f}",
            "loss_scale": "64",
            "train_wall": "11",
            "wall": str(13 * (i + 1)),
        }
        out.append(f"{clock(i, 11)} | INFO | train_inner | {json.dumps(row)}")
        if i in (1, 2):
            out.append(
                f"{clock(i, 11)} | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring"
                f" gradient, setting loss scale to: {128 / i:.1f}"
            )
    return out


def deepspeed(loss: Sequence[float], rate: Sequence[float], k: int = 10) -> list[str]:
    out = ["[2025-03-11 10:00:00,101] [INFO] [config.py:1000:print]   fp16_enabled ........ True"]
    for i, value in enumerate(loss):
        step = (i + 1) * k
        at = f"[{clock(step)},{step % 1000:03d}]"
        if i < 2:
            out.append(
                f"{at} [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping"
                f" step. Attempted loss scale: {65536 >> i}, reducing to {32768 >> i}"
            )
        out.append(
            f"{at} [INFO] [logging.py:128:log_dist] [Rank 0] step={step}, skipped=2,"
            f" lr=[{rate[i]!r}], mom=[(0.9, 0.95)]"
        )
        out.append(f"steps: {step} loss: {value:.4f} iter time (s): 0.412 samples/sec: 19.41")
    return out


def torchtune(loss: Sequence[float], memory: Sequence[float] | None = None) -> list[str]:
    """The log file of torchtune's DiskLogger."""
    return [
        f"Step {i + 1} | loss:{value} lr:2e-05 tokens_per_second_per_gpu:{3012.5 + i % 17}"
        f" peak_memory_active:{memory[i] if memory else 14.28}"
        for i, value in enumerate(loss)
    ]


def mmengine(
    path: Path, loss: Sequence[float], memory: Sequence[float] | None = None, k: int = 50
) -> Path:
    rows = [
        json.dumps(
            {
                "lr": 0.02,
                "data_time": 0.0131,
                "loss": value,
                "loss_cls": value * 0.6,
                "loss_bbox": value * 0.4,
                "time": 0.31,
                "epoch": 1 + i // 20,
                "iter": (i + 1) * k,
                "memory": int(memory[i]) if memory else 5431,
                "step": (i + 1) * k,
            }
        )
        for i, value in enumerate(loss)
    ]
    return save(path, rows)


def detectron2(path: Path, loss: Sequence[float], parts: Sequence[float]) -> Path:
    rows = [
        json.dumps(
            {
                "data_time": 0.004,
                "eta_seconds": 1000.0 - i,
                "iteration": 20 * i + 19,
                "loss_box_reg": parts[i],
                "loss_cls": loss[i] - parts[i],
                "lr": 0.0025,
                "time": 0.21,
                "total_loss": loss[i],
            }
        )
        for i in range(len(loss))
    ]
    return save(path, rows)


def yolo(path: Path, box: Sequence[float], dfl: Sequence[float], val: Sequence[float]) -> Path:
    head = (
        "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B),"
        "metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0"
    )
    rows = [head]
    for e, value in enumerate(box):
        score = 0.8 * (1 - math.exp(-e / 20))
        rows.append(
            f"{e + 1},{31.2 * (e + 1):.2f},{value:.5f},{value * 1.4:.5f},{dfl[e]:.5f},{score:.5f},{score * 0.9:.5f},"
            f"{score * 0.95:.5f},{score * 0.7:.5f},{val[e]:.5f},{val[e] * 1.3:.5f},{dfl[e] * 1.1:.5f},{0.01 * (1 - e / len(box)):.6f}"
        )
    return save(path, rows)


def fastai(train: Sequence[float], valid: Sequence[float]) -> list[str]:
    out = ["epoch     train_loss  valid_loss  accuracy  time    "]
    for e, (t, v) in enumerate(zip(train, valid, strict=True)):
        out.append(f"{e:<10}{t:<12.6f}{v:<12.6f}{0.6 + 0.02 * e:<10.6f}00:{31 + e % 3}     ")
    return out


def keras_csv(path: Path, loss: Sequence[float], val: Sequence[float]) -> Path:
    rows = ["epoch,accuracy,loss,lr,val_accuracy,val_loss"]
    for e, (t, v) in enumerate(zip(loss, val, strict=True)):
        rows.append(f"{e},{1 - t / 4:.5f},{t:.6f},0.001,{1 - v / 4:.5f},{v:.6f}")
    return save(path, rows)


def sb3(columns: dict[str, Sequence[float]], every: int = 2048) -> list[str]:
    """The table that Stable-Baselines3 prints after each rollout."""
    out = ["Using cuda device", "Wrapping the env in a DummyVecEnv."]
    count = len(next(iter(columns.values())))
    for i in range(count):
        out.append("-" * 42)
        group = ""
        rows = {"time/iterations": i + 1, "time/total_timesteps": (i + 1) * every}
        for name, value in {**{n: v[i] for n, v in columns.items()}, **rows}.items():
            head, _, tail = name.partition("/")
            if head != group:
                out.append(f"| {head + '/':<23} | {'':<12} |")
                group = head
            out.append(f"|    {tail:<20} | {value:<12.3g} |")
        out.append("-" * 42)
    return out


def mlflow_store(path: Path, runs: dict[str, tuple[str, dict[str, Sequence[float]]]]) -> Path:
    """A sqlite store of MLflow: name to status and metrics, in the order of their start."""
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
    for number, (name, (status, columns)) in enumerate(runs.items()):
        uuid = f"{number + 17:032x}"
        start = 1741687200000 + number * 10_000_000
        db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", (uuid, name, status, start, start))
        for key, values in columns.items():
            for step, value in enumerate(values):
                bad = math.isnan(value)
                db.execute(
                    "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
                    (key, 0.0 if bad else value, start + 300 * step, uuid, step, bad),
                )
    db.commit()
    db.close()
    return path


def mlflow_folder(d: Path, name: str, columns: dict[str, Sequence[float]], status: int = 3) -> Path:
    run = d / "mlruns" / "0" / name
    for key, values in columns.items():
        lines = [f"{1741687200000 + 300 * s} {v} {s}" for s, v in enumerate(values)]
        save(run / "metrics" / key, lines)
    save(run / "params" / "lr", ["0.001"])
    save(run / "meta.yaml", [f"run_id: {name}", f"run_name: {name}", f"status: {status}"])
    return d


def wandb(path: Path, columns: dict[str, Sequence[float]], code: int | None = 0) -> Path:
    """An offline file of W&B: records in LevelDB framing; `code` None: it never finished."""

    def varint(n: int) -> bytes:
        out = bytearray()
        while n > 0x7F:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)
        return bytes(out)

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    blob = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))

    def add(data: bytes) -> None:
        first = True
        while True:
            room = 32768 - len(blob) % 32768
            if room < 7:
                blob.extend(bytes(room))
                continue
            part, data = data[: room - 7], data[room - 7 :]
            kind = (1 if first else 4) if not data else (2 if first else 3)
            crc = zlib.crc32(part, zlib.crc32(bytes([kind])))
            blob.extend(struct.pack("<IHB", crc, len(part), kind) + part)
            first = False
            if not data:
                return

    number = 1
    add(b"\x08" + varint(number) + field(17, field(1, b"un13lzpi") + field(3, b"p")))
    for step in range(len(next(iter(columns.values())))):
        number += 1
        items = b""
        row = {key: values[step] for key, values in columns.items()}
        for key, value in {**row, "_step": step}.items():
            shown = "NaN" if value != value else json.dumps(value)
            items += field(1, field(2, key.encode()) + field(16, shown.encode()))
        add(b"\x08" + varint(number) + field(2, items + field(2, b"\x08" + varint(step))))
    if code is not None:
        add(b"\x08" + varint(number + 1) + field(18, b"\x08" + varint(code) if code else b""))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(blob))
    return path


# Healthy runs, many of which look ill.


@case("healthy")
def nanogpt_with_evaluations(d: Path) -> Path:
    loss, lines = falling(3000, 10.9, 3.1, 301, 0.015), []
    for i, line in enumerate(nanogpt(loss, 10)[2:]):
        if i % 25 == 0:
            lines.append(
                f"step {i * 10}: train loss {loss[i * 10]:.4f}, val loss {loss[i * 10] + 0.04:.4f}"
            )
        lines.append(line)
    return save(d / "train.log", lines)


@case("healthy")
def lightning_bar_with_returns(d: Path) -> Path:
    return text(d / "out.txt", lightning_bars(falling(600, 2.3, 0.4, 302, 0.08), 100))


@case("healthy")
def hf_state_stopped_early(d: Path) -> Path:
    rows = hf_rows(falling(900, 0.7, 0.2, 303), norms(900, 303), linear(3000, 2e-5, 100), 10)
    evals = [0.52, 0.41, 0.36, 0.345, 0.35, 0.352, 0.349, 0.351, 0.353]
    for i, value in enumerate(evals):
        rows.insert(
            11 * (i + 1) - 1,
            {"epoch": i + 1.0, "eval_loss": value, "eval_runtime": 3.1, "step": 100 * (i + 1)},
        )
    return hf_state(d / "trainer_state.json", rows, 10, 3000, done=True)


@case("healthy")
def grpo_loss_around_zero_reward_noisy(d: Path) -> Path:
    rng = random.Random(304)
    lines = []
    for i in range(300):
        row = {
            "loss": 0.0 if i < 2 else round(rng.gauss(0.0, 0.01) + i * 2e-5, 4),
            "grad_norm": round(0.2 + rng.random() * 0.2, 4),
            "learning_rate": 1e-6 * (1 - i / 300),
            "num_tokens": 41000.0 * (i + 1),
            "completions/mean_length": 210 + rng.gauss(0, 25),
            "reward": round(0.2 + 0.5 * i / 300 + rng.gauss(0, 0.12), 4),
            "reward_std": 0.31,
            "kl": round(0.0004 * i / 100, 6),
            "clip_ratio": 0.0,
            "epoch": round(i / 300, 2),
        }
        lines.append(str(row))
    return save(d / "grpo.log", lines)


@case("healthy")
def yolo_close_mosaic(d: Path) -> Path:
    box = falling(80, 1.9, 0.8, 305, 0.01)
    box = [v if e < 70 else v * 0.8 for e, v in enumerate(box)]
    return yolo(
        d / "results.csv", box, falling(80, 1.5, 0.95, 306, 0.005), falling(80, 1.8, 1.0, 307, 0.02)
    )


@case("healthy")
def fairseq_json_first_overflows(d: Path) -> Path:
    return save(
        d / "train.log", fairseq_json(falling(120, 13.0, 4.2, 308, 0.02), norms(120, 308, 1.1))
    )


@case("healthy")
def deepspeed_two_first_skips(d: Path) -> Path:
    return save(d / "ds.log", deepspeed(falling(150, 9.0, 2.4, 309, 0.02), cosine(150, 3e-4, 20)))


@case("healthy")
def megatron_restarted_twice(d: Path) -> Path:
    n = 1500
    loss, norm, rate = (
        falling(n, 10.5, 3.0, 310, 0.01),
        norms(n, 310, 0.5, 10),
        cosine(n, 3e-4, 100),
    )
    out: list[str] = []
    for first, last in ((0, 600), (500, 1100), (1000, n)):
        out += megatron(loss[first:last], norm[first:last], rate[first:last], 10, n, first=first)
        if last < n:
            out.append(
                "slurmstepd: error: *** STEP 77.0 ON n12 CANCELLED AT 2025-03-11T12:00:00 DUE TO PREEMPTION ***"
            )
            out.append("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
    return save(d / "slurm-77.out", out)


@case("healthy")
def torchtune_disk_log(d: Path) -> Path:
    return save(d / "log_1741687200.txt", torchtune(falling(250, 1.6, 0.9, 311, 0.08)))


@case("healthy")
def torchtune_bar(d: Path) -> Path:
    loss = falling(400, 2.1, 1.1, 312, 0.07)
    bars = [
        f"1|{i + 1}|Loss: {v}:  {i // 4}%|{'█' * (i // 40):<10}| {i + 1}/400 [{i // 60:02d}:{i % 60:02d}<05:11,  1.02it/s]"
        for i, v in enumerate(loss)
    ]
    return text(d / "tune.log", "\r".join(bars) + "\n")


@case("healthy")
def detectron2_metrics(d: Path) -> Path:
    loss = falling(200, 3.2, 0.7, 313, 0.05)
    return detectron2(
        d / "metrics.json", loss, [v * (0.1 + 0.4 * i / 200) for i, v in enumerate(loss)]
    )


@case("healthy")
def mmengine_scalars(d: Path) -> Path:
    return mmengine(d / "vis_data" / "scalars.json", falling(160, 2.4, 0.6, 314, 0.04))


@case("healthy")
def keras_csv_noisy_validation(d: Path) -> Path:
    loss = falling(50, 2.2, 0.35, 315, 0.02)
    rng = random.Random(315)
    return keras_csv(
        d / "training.log", loss, [v * 1.2 * math.exp(rng.gauss(0, 0.15)) for v in loss]
    )


@case("healthy")
def fastai_table(d: Path) -> Path:
    loss = falling(14, 1.1, 0.25, 316, 0.02, 0.3)
    return save(d / "learn.txt", fastai(loss, [v * 1.05 for v in loss]))


@case("healthy", "unknown")
def gan_losses_that_never_settle(d: Path) -> Path:
    rng = random.Random(317)
    steps = range(0, 6000, 20)
    dis = [(s, 0.9 + 0.25 * math.sin(s / 310) + rng.gauss(0, 0.15)) for s in steps]
    gen = [(s, 1.6 + 0.5 * math.sin(s / 270 + 1) + rng.gauss(0, 0.3)) for s in steps]
    return tensorboard(d / "events.out.tfevents.1.h.1.0", {"Loss/D": dis, "Loss/G": gen})


@case("healthy", "unknown")
def wandb_ppo_noisy_reward(d: Path) -> Path:
    rng = random.Random(318)
    n = 250
    return wandb(
        d / "wandb/offline-run-20250311_100000-un13lzpi/run-un13lzpi.wandb",
        {
            "rollout/ep_rew_mean": [20 + 0.6 * i + rng.gauss(0, 15) for i in range(n)],
            "train/value_loss": [
                abs(40 + 20 * math.sin(i / 20) + rng.gauss(0, 12)) for i in range(n)
            ],
            "train/policy_gradient_loss": [rng.gauss(-0.012, 0.006) for _ in range(n)],
            "train/entropy_loss": [-1.4 + 0.003 * i for i in range(n)],
            "train/loss": [10 + 6 * math.sin(i / 20) + abs(rng.gauss(0, 4)) for i in range(n)],
        },
    )


@case("healthy")
def mlflow_folder_negative_likelihood(d: Path) -> Path:
    rng = random.Random(319)
    loss = [-3.4 + 5.0 / (1 + i / 60) + rng.gauss(0, 0.06) for i in range(500)]
    return mlflow_folder(d, "flow", {"train_nll": loss, "lr": cosine(500, 1e-3)}) / "mlruns"


@case("healthy", runs={"lr-1e-3": "healthy", "lr-3e-4": "healthy", "lr-1e-4": "healthy"})
def mlflow_db_sweep_of_three(d: Path) -> Path:
    runs = {
        name: ("FINISHED", {"loss": falling(300, 2.3, floor, 320 + i, 0.04)})
        for i, (name, floor) in enumerate((("lr-1e-3", 0.5), ("lr-3e-4", 0.7), ("lr-1e-4", 1.1)))
    }
    return mlflow_store(d / "mlflow.db", runs)


@case("healthy")
def trackio_warm_restarts(d: Path) -> Path:
    rate = [cosine(200, 0.1)[i % 200] for i in range(800)]
    loss = falling(800, 2.3, 0.3, 323, 0.04)
    for at in (201, 401, 601):
        loss = bump(loss, at, 0.5, 25)
    return trackio_db(d / "project.db", {"sgdr": {"loss": loss, "lr": rate}})


@case("healthy")
def jsonl_memory_bank_fills(d: Path) -> Path:
    bank = [min(256 * (i + 1), 16384 * 16) for i in range(600)]
    loss = falling(600, 9.0, 6.3, 324, 0.01)
    return jsonl(d / "moco.jsonl", {"loss": loss, "memory_bank": bank, "memory_bank_size": bank})


@case("healthy")
def tsv_odd_names(d: Path) -> Path:
    loss = falling(500, 4.0, 1.2, 325, 0.04)
    rows = ["Iter\tTrain.NLL\tEta\tGrad2Norm"]
    rows += [f"{i}\t{v:.5f}\t{3e-4:.2e}\t{1 + i % 3 / 10:.3f}" for i, v in enumerate(loss)]
    return save(d / "history.tsv", rows)


@case("healthy")
def utf16_console(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    lines = "\r\n".join(plain(falling(300, 2.3, 0.6, 326, 0.05)))
    (d / "train.log").write_bytes(b"\xff\xfe" + lines.encode("utf-16-le"))
    return d / "train.log"


@case("healthy")
def gzipped_console(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    lines = "\n".join(nanogpt(falling(400, 10.8, 4.0, 327, 0.02)))
    (d / "train.log.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    return d / "train.log.gz"


@case("healthy")
def slurm_requeued_three_times(d: Path) -> Path:
    loss, out = falling(900, 3.5, 1.1, 328, 0.04), []
    for part in range(3):
        out.append(f"=== attempt {part + 1} on node n{part + 4} ===")
        if part:
            out.append(f"Resuming from checkpoint step {300 * part}")
        out += [
            f"step {i} loss {loss[i]:.4f} lr 1.0e-04" for i in range(300 * part, 300 * part + 300)
        ]
        if part < 2:
            out.append(
                "slurmstepd: error: *** JOB 901 ON n4 CANCELLED AT 2025-03-11T13:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
            )
    return save(d / "slurm-901.out", [*out, "Training finished, model saved to out/final.pt"])


@case("healthy")
def srun_labelled_ranks(d: Path) -> Path:
    ranks = [falling(250, 5.0, 2.0, 329 + r, 0.06) for r in range(4)]
    lines = [
        f"{r}: step {i} loss {ranks[r][i]:.4f} lr 3.0e-04" for i in range(250) for r in range(4)
    ]
    return save(d / "job.out", lines)


@case("healthy")
def rich_colours(d: Path) -> Path:
    loss = falling(300, 2.3, 0.5, 334, 0.05)
    lines = [
        f"\x1b[2;36m[10:{i // 60 % 60:02d}:{i % 60:02d}]\x1b[0m\x1b[2;36m \x1b[0m\x1b[34mINFO    \x1b[0m step \x1b[1;36m{i}\x1b[0m/\x1b[1;36m300\x1b[0m"
        f" \x1b[33mloss\x1b[0m=\x1b[1;36m{v:.4f}\x1b[0m \x1b[33mlr\x1b[0m=\x1b[1;36m0.0003\x1b[0m \x1b[2mtrain.py\x1b[0m\x1b[2m:\x1b[0m\x1b[2m88\x1b[0m"
        for i, v in enumerate(loss)
    ]
    return save(d / "rich.log", lines)


@case("healthy")
def curriculum_longer_sequences(d: Path) -> Path:
    loss = falling(1200, 6.0, 2.0, 335, 0.02)
    loss = bump(bump(loss, 401, 0.7, 120), 801, 0.5, 120)
    length = [(512, 1024, 2048)[i // 400] for i in range(1200)]
    return csv(d / "log.csv", {"loss": loss, "seq_len": length}, 4)


@case("healthy")
def evaluation_pauses(d: Path) -> Path:
    loss = falling(1000, 3.0, 1.0, 336, 0.03)
    took = [41.0 if i and i % 200 == 0 else 0.31 + (i % 5) / 100 for i in range(1000)]
    return jsonl(d / "m.jsonl", {"train/loss": loss, "step_time": took}, 2)


@case("healthy")
def warm_up_flat_then_learns(d: Path) -> Path:
    loss = [*around(150, math.log(100), 337, 0.01), *falling(850, math.log(100), 1.0, 338, 0.02)]
    return csv(d / "log.csv", {"loss": loss, "lr": cosine(1000, 1e-3, 150)}, 2)


@case("healthy", "unknown")
def twelve_steps_only(d: Path) -> Path:
    return save(
        d / "run.log", plain([2.3, 2.1, 1.9, 1.7, 1.6, 1.45, 1.3, 1.2, 1.1, 1.05, 0.99, 0.93])
    )


@case("healthy", "unknown")
def sb3_loss_grows_with_the_reward(d: Path) -> Path:
    rng = random.Random(339)
    n = 120
    reward = [20 + 4 * i + rng.gauss(0, 12) for i in range(n)]
    return save(
        d / "sb3.log",
        sb3(
            {
                "rollout/ep_rew_mean": reward,
                "train/loss": [5 + 0.4 * i + abs(rng.gauss(0, 6)) for i in range(n)],
                "train/value_loss": [10 + 0.8 * i + abs(rng.gauss(0, 12)) for i in range(n)],
                "train/learning_rate": [3e-4] * n,
            }
        ),
    )


@case("healthy")
def cosine_similarity_below_zero(d: Path) -> Path:
    rng = random.Random(340)
    loss = [-0.94 + 0.8 * math.exp(-i / 150) + rng.gauss(0, 0.01) for i in range(800)]
    return csv(d / "simsiam.csv", {"loss": loss, "lr": cosine(800, 0.05)}, 2)


@case("healthy")
def console_stopped_early(d: Path) -> Path:
    loss = falling(24, 1.4, 0.4, 341, 0.02, 0.2)
    val = [v * 1.1 if e < 17 else 0.52 + 0.004 * (e - 16) for e, v in enumerate(loss)]
    lines = [
        f"Epoch {e + 1}/100 - train_loss: {loss[e]:.4f} - val_loss: {val[e]:.4f}" for e in range(24)
    ]
    return save(
        d / "t.log",
        [
            *lines,
            "Early stopping after epoch 24: no improvement for 7 epochs. Best epoch 17.",
            "Terminating.",
        ],
    )


@case("healthy")
def device_memory_percent_steady(d: Path) -> Path:
    rng = random.Random(342)
    used = [74 - (i % 40) / 10 + rng.gauss(0, 0.4) for i in range(800)]
    return csv(d / "log.csv", {"loss": falling(800, 3, 1, 342), "gpu_mem_percent": used}, 2)


@case("healthy")
def auxiliary_loss_annealed_away(d: Path) -> Path:
    main = falling(800, 2.5, 0.8, 343, 0.03)
    aux = [max(0.0, 1 - i / 400) * 0.5 * v for i, v in enumerate(main)]
    weight = [max(0.0, 1 - i / 400) for i in range(800)]
    total = [m + a for m, a in zip(main, aux, strict=True)]
    return jsonl(
        d / "m.jsonl", {"loss": total, "loss_main": main, "loss_aux": aux, "aux_weight": weight}, 2
    )


@case("healthy")
def worker_noise_after_the_end(d: Path) -> Path:
    lines = plain(falling(300, 2.3, 0.6, 344, 0.05))
    return save(
        d / "run.log",
        [
            *lines,
            "Training finished in 0:12:31. Model saved to out/last.pt",
            "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f1c>",
            "Traceback (most recent call last):",
            '  File "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", line 1478, in __del__',
            "    self._shutdown_workers()",
            "AssertionError: can only test a child process",
        ],
    )


@case("healthy")
def process_group_warning_at_the_end(d: Path) -> Path:
    lines = plain(falling(300, 2.3, 0.6, 345, 0.05), 1, lambda i: " | lr 3.0e-04")
    return save(
        d / "run.log",
        [
            *lines,
            "[rank0]:[W311 10:20:31.118 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not"
            " called before program exit, which can leak resources. (function operator())",
        ],
    )


@case("healthy")
def vae_with_kl_warm_up(d: Path) -> Path:
    rng = random.Random(346)
    beta = [min(1.0, i / 500) for i in range(1500)]
    recon = falling(1500, 180, 82, 346, 0.01)
    kl = [24 * math.exp(-b) + 3 + rng.gauss(0, 0.3) for b in beta]
    rows = [
        f"[{i:5d}] loss {recon[i] + beta[i] * kl[i]:.2f} recon {recon[i]:.2f} kl {kl[i]:.2f} beta {beta[i]:.2f}"
        for i in range(0, 1500, 5)
    ]
    return save(d / "vae.log", rows)


@case("healthy")
def hf_console_finished(d: Path) -> Path:
    rows = hf_rows(falling(700, 2.5, 1.3, 347), norms(700, 347), linear(700, 5e-5, 30), 10)
    return save(d / "nohup.out", hf_console(rows, 700))


@case("healthy", runs={"version_0": "healthy", "version_1": "healthy"})
def lightning_csv_two_seeds(d: Path) -> Path:
    for v in range(2):
        loss = falling(300, 2.3, 0.5, 348 + v, 0.05)
        rows = ["epoch,lr-Adam,step,train_loss_epoch,train_loss_step,val_loss"]
        for i, value in enumerate(loss):
            rows.append(f"{i // 50},,{i * 10},,{value:.5f},")
            if i % 50 == 49:
                rows.append(f"{i // 50},,{i * 10},,,{value * 1.1:.5f}")
                rows.append(f"{i // 50},,{i * 10},{value:.5f},,")
        save(d / f"lightning_logs/version_{v}/metrics.csv", rows)
    return d / "lightning_logs"
