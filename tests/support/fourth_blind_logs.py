"""The fourth blind set of logs: its writers, and the healthy runs that look ill.

As in the earlier sets, the expectation of every case was written before its first diagnosis, without
reading the readers or the checks. `fourth_blind_logs_ill` holds the other half.
"""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from support.external_log_simulators import around, bump, cosine, falling, linear, norms
from support.external_log_writers import clock, hf_rows, hf_state, save, torchtitan
from support.external_log_writers import tfevents as tensorboard
from support.second_blind_logs import BlindLog, csv, jsonl, plain, trackio_db
from support.third_blind_logs import mlflow_folder, text, wandb

FOURTH: list[BlindLog] = []


def case(
    *verdicts: str,
    codes: Sequence[str] = (),
    runs: dict[str, str] | None = None,
    worst: str = "",
    says: str = "",
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a log of the fourth set with the verdicts that are right."""

    def add(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        FOURTH.append(
            BlindLog(write.__name__, write, verdicts, tuple(codes), runs or {}, worst, says)
        )
        return write

    return add


def nanochat(loss: Sequence[float], dt: Callable[[int], float] | None = None) -> list[str]:
    out = ["Autodetected device type: cuda", "Vocab size: 65,536", "Total batch size 524,288"]
    n = len(loss)
    for i, value in enumerate(loss):
        if i % 250 == 0:
            out.append(f"Step {i:05d} | Validation bpb: {min(value / 3.2, 9):.4f}")
        ms = dt(i) if dt else 412.3 + i % 7
        out.append(
            f"step {i:05d}/{n:05d} ({100 * i / n:.2f}%) | loss: {value:.6f} | grad norm: {0.4 + i % 5 / 20:.4f} | lrm: {min(1.0, 5 * (1 - i / n)):.2f}"
            f" | dt: {ms:.2f}ms | tok/sec: {int(524288000 / ms):,} | mfu: 48.12 | total time: {i * ms / 6e4:.2f}m"
        )
    return out


def llama_recipes(loss: Sequence[float], per_epoch: int) -> str:
    out = "--> Running with torch dist debug set to detail\n--> Model meta-llama/Llama-3.2-1B\n"
    epochs = len(loss) // per_epoch
    for i, value in enumerate(loss):
        e, at = i // per_epoch, i % per_epoch
        share = 100 * (at + 1) // per_epoch
        out += (
            f"\rTraining Epoch: {e + 1}/{max(epochs, 1)}, step {at}/{per_epoch} completed (loss: {value}): {share:3d}%|\x1b[34m{'█' * (share // 10):<10}\x1b[0m|"
            f" {at + 1}/{per_epoch} [{at // 60:02d}:{at % 60:02d}<03:12,  1.02it/s]"
        )
        if at == per_epoch - 1:
            mean = sum(loss[e * per_epoch : i + 1]) / per_epoch
            out += f"\nMax CUDA memory allocated was 14 GB\nEpoch {e + 1}: train_perplexity={math.exp(min(mean, 50)):.4f}, train_epoch_loss={mean:.4f}, epoch time {per_epoch / 1.02}s\n"
    return out


def axolotl(
    loss: Sequence[float],
    norm: Sequence[float],
    memory: Sequence[float] | None = None,
) -> list[str]:
    out = [
        "[2025-03-11 10:00:00,101] [INFO] [axolotl.cli.train.do_train:51] [PID:88] [RANK:0] Starting trainer..."
    ]
    for i, value in enumerate(loss):
        gib = memory[i] if memory else 21.4
        row = {
            "loss": round(value, 4),
            "grad_norm": norm[i],
            "learning_rate": 2e-4 * (1 - i / len(loss)),
            "memory/max_mem_active(gib)": round(gib, 2),
            "memory/max_mem_allocated(gib)": round(gib, 2),
            "memory/device_mem_reserved(gib)": round(gib * 1.1, 2),
            "epoch": round(i / 150, 2),
        }
        out.append(str(row))
    return out


def openclip(loss: Sequence[float], per_epoch: int = 100) -> list[str]:
    out = [
        "2025-03-11,10:00:00 | INFO | Running in distributed mode with multiple processes. Device: cuda:0.Process (global: 0, local 0), total 8."
    ]
    mean = loss[0]
    for i, value in enumerate(loss):
        mean = value if i % per_epoch == 0 else mean * 0.9 + value * 0.1
        at = i % per_epoch
        out.append(
            f"{clock(i).replace(' ', ',')} | INFO | Train Epoch: {i // per_epoch} [{at * 25600:>8}/{per_epoch * 25600} ({at}%)] Data (t): 0.012"
            f" Batch (t): 0.412, 9941.2/s, 1242.6/s/gpu LR: {5e-4 * min(1, (i + 1) / 80):.6f} Logit Scale: {14.286 + i / 40:.3f} Contrastive_loss: {value:.5g} ({mean:.5g}) Loss: {value:.5g} ({mean:.5g})"
        )
    return out


def timm_csv(path: Path, train: Sequence[float], val: Sequence[float]) -> Path:
    rows = ["epoch,train_loss,eval_loss,eval_top1,eval_top5,lr"]
    rate = cosine(len(train), 1e-3, 5, 1e-5)
    rows += [
        f"{e},{t!r},{v!r},{78 * (1 - math.exp(-e / 30))!r},{94 * (1 - math.exp(-e / 20))!r},{rate[e]!r}"
        for e, (t, v) in enumerate(zip(train, val, strict=True))
    ]
    return save(path, rows)


def espnet(loss: Sequence[float], norm: Sequence[float], k: int = 500) -> list[str]:
    out = []
    for i, value in enumerate(loss):
        e, at = i // 10 + 1, i % 10
        out.append(
            f"[n12] {clock(i, 60)},{i % 900 + 100} (trainer:762) INFO: {e}epoch:train:{at * k + 1}-{(at + 1) * k}batch: iter_time=1.2e-04, forward_time=0.141,"
            f" loss_ctc={value * 1.2:.3f}, loss_att={value * 0.9:.3f}, acc={0.9 * (1 - math.exp(-i / 80)):.3f}, loss={value:.3f}, backward_time=0.211,"
            f" grad_norm={norm[i]:.3f}, clip=100.000, loss_scale=1.000e+00, optim_step_time=0.031, optim0_lr0={min(2e-3, 2e-5 * (i + 1)):.3e}, train_time=1.221"
        )
    return out


def nemo(loss: Sequence[float], per: int = 1000) -> str:
    out = "[NeMo I 2025-03-11 10:00:00 exp_manager:396] Experiments will be logged at /results\n"
    for i, value in enumerate(loss):
        share = 100 * (i + 1) // per
        out += (
            f"\rEpoch 0: :{share:4d}%|{'█' * (share // 10):<10}| {i + 1}/{per} [{i // 60:02d}:{i % 60:02d}<22:10, v_num=1-23, reduced_train_loss={value:#.3g},"
            f" global_step={i}.0, consumed_samples={(i + 1) * 256}.0, train_step_timing in s={0.81 + i % 4 / 100:.3f}]"
        )
    return out


def absl(loss: Sequence[float], k: int = 50) -> list[str]:
    out = [
        "I0311 10:00:00.000000 140211 xla_bridge.py:889] Unable to initialize backend 'rocm': module 'jaxlib' has no attribute"
    ]
    for i, value in enumerate(loss):
        s = i + 36000
        out.append(
            f"I0311 {s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.{i % 900000 + 100000} 140211 logging_writer.py:48] [{(i + 1) * k}] accuracy={0.7 * (1 - math.exp(-i / 60)):.6f},"
            f" learning_rate={0.1:.6f}, loss={value:.6f}, steps_per_sec={12.1 + i % 3 / 10:.4f}"
        )
    return out


def fairseq_text(loss: Sequence[float], norm: Sequence[float], k: int = 100) -> list[str]:
    return [
        f"{clock(i, 12)} | INFO | train_inner | epoch {1 + i // 12:03d}: {(i % 12 + 1) * k:6d} / 1200 loss={v:.3f}, nll_loss={v * 0.93:.3f}, ppl={2 ** min(v, 30):.2f},"
        f" wps=31200.1, ups=8.9, wpb=3500.2, bsz=128, num_updates={(i + 1) * k}, lr={min(5e-4, 1.25e-7 * (i + 1) * k):.6g}, gnorm={norm[i]:.3f}, loss_scale=128, train_wall=12, gb_free=9.1, wall={12 * (i + 1)}"
        for i, v in enumerate(loss)
    ]


def keras3(loss: Sequence[float], val: Sequence[float]) -> str:
    out = ""
    for e, (t, v) in enumerate(zip(loss, val, strict=True)):
        out += f"Epoch {e + 1}/{len(loss)}\n"
        for k in (1, 250, 500, 782):
            bar = "━" * (20 * k // 782)
            out += f"\r\x1b[1m{k}/782\x1b[0m \x1b[32m{bar}\x1b[0m\x1b[37m{'━' * (20 - len(bar))}\x1b[0m \x1b[1m{12 - k // 80}s\x1b[0m 14ms/step - accuracy: {0.4 + e / 60:.4f} - loss: {t * 1.01:.4f}"
        out += f"\r\x1b[1m782/782\x1b[0m \x1b[32m{'━' * 20}\x1b[0m\x1b[37m\x1b[0m \x1b[1m12s\x1b[0m 15ms/step - accuracy: {0.4 + e / 60:.4f} - loss: {t:.4f} - val_accuracy: {0.39 + e / 70:.4f} - val_loss: {v:.4f}\n"
    return out


def mmdet(loss: Sequence[float], norm: Sequence[float]) -> list[str]:
    return [
        f"{clock(i, 20)},{i % 900 + 100} - mmdet - INFO - Epoch [{1 + i // 40}][{(i % 40 + 1) * 50}/2000]\tlr: 2.000e-02, eta: 12:11:10, time: 0.411, data_time: 0.052, memory: 5123,"
        f" loss_rpn_cls: {v * 0.1:.4f}, loss_rpn_bbox: {v * 0.1:.4f}, loss_cls: {v * 0.5:.4f}, acc: 91.1234, loss_bbox: {v * 0.3:.4f}, loss: {v:.4f}, grad_norm: {norm[i]:.4f}"
        for i, v in enumerate(loss)
    ]


def detectron2_console(loss: Sequence[float]) -> list[str]:
    out = []
    for i, v in enumerate(loss):
        at = clock(i, 5)[5:].replace("-", "/")
        out.append(
            f"[{at} d2.utils.events]:  eta: 1:11:09  iter: {20 * i + 19}  total_loss: {v:.4g}  loss_cls: {v * 0.5:.4g}  loss_box_reg: {v * 0.3:.4g}  loss_rpn_cls: {v * 0.1:.4g}"
            f"  loss_rpn_loc: {v * 0.1:.4g}    time: 0.2112  last_time: 0.2090  data_time: 0.0041  last_data_time: 0.0032   lr: {min(0.02, 1e-4 * (i + 1)):.4g}  max_mem: 5123M"
        )
    return out


def structlog(rows: Sequence[dict[str, float]], k: int = 10) -> list[str]:
    out = [
        json.dumps(
            {
                "seed": 1,
                "event": "config",
                "level": "info",
                "timestamp": "2025-03-11T10:00:00.000000Z",
            }
        )
    ]
    for i, row in enumerate(rows):
        stamp = clock(i).replace(" ", "T") + ".118231Z"
        out.append(
            json.dumps(
                {
                    "step": (i + 1) * k,
                    **row,
                    "event": "train_step",
                    "level": "info",
                    "timestamp": stamp,
                }
            )
        )
        if i % 50 == 49:
            out.append(
                json.dumps(
                    {
                        "path": "ckpt/last.pt",
                        "event": "checkpoint_saved",
                        "level": "info",
                        "timestamp": stamp,
                    }
                )
            )
    return out


def loguru(loss: Sequence[float], k: int = 10) -> list[str]:
    """Lines of `logger.add(path, serialize=True)`."""
    out = []
    for i, v in enumerate(loss):
        message = f"step={(i + 1) * k} loss={v:.4f} lr=3.0e-04"
        at = clock(i)
        out.append(
            json.dumps(
                {
                    "text": f"{at}.118 | INFO     | __main__:train:71 - {message}\n",
                    "record": {
                        "elapsed": {"repr": "0:00:01", "seconds": 1.2 + i},
                        "exception": None,
                        "extra": {},
                        "file": {"name": "train.py", "path": "/home/u/train.py"},
                        "function": "train",
                        "level": {"icon": "ℹ️", "name": "INFO", "no": 20},
                        "line": 71,
                        "message": message,
                        "module": "train",
                        "name": "__main__",
                        "process": {"id": 4711, "name": "MainProcess"},
                        "thread": {"id": 140211, "name": "MainThread"},
                        "time": {
                            "repr": f"{at}.118231+01:00",
                            "timestamp": 1741687200.1 + i,
                        },
                    },
                }
            )
        )
    return out


def long_csv(path: Path, columns: dict[str, Sequence[float]], k: int = 10) -> Path:
    """One value per row, as a data frame of an experiment tracker is exported."""
    rows = ["run.hash,metric.name,context.subset,step,value,time"]
    for name, values in columns.items():
        rows += [
            f"9f3b1c7de1,{name},train,{i * k},{v:.6g},{1741687200 + i}"
            for i, v in enumerate(values)
        ]
    return save(path, rows)


def wandb_history(
    columns: dict[str, Sequence[float]], sparse: dict[int, dict[str, float]]
) -> list[str]:
    n = len(next(iter(columns.values())))
    return [
        json.dumps(
            {
                **{name: values[i] for name, values in columns.items()},
                **sparse.get(i, {}),
                "_step": i,
                "_runtime": 1.3 * i,
                "_timestamp": 1741687200.0 + 1.3 * i,
            }
        )
        for i in range(n)
    ]


# Healthy runs, many of which look ill.


@case("healthy")
def nanochat_base(d: Path) -> Path:
    return save(d / "base_train.log", nanochat(falling(900, 11.1, 3.2, 501, 0.015)))


@case("healthy")
def llama_recipes_three_epochs(d: Path) -> Path:
    loss = falling(600, 1.9, 1.25, 502, 0.06)
    return text(
        d / "ft.log", llama_recipes([v * (1 - 0.12 * (i // 200)) for i, v in enumerate(loss)], 200)
    )


@case("healthy")
def axolotl_memory_levels_off(d: Path) -> Path:
    memory = [min(16.0 + 0.2 * i, 23.1) for i in range(400)]
    return save(
        d / "axolotl.log", axolotl(falling(400, 1.5, 1.05, 503, 0.07), norms(400, 503, 0.4), memory)
    )


@case("healthy")
def openclip_two_epochs(d: Path) -> Path:
    return save(d / "out.log", openclip(falling(300, 7.6, 1.4, 504, 0.03)))


@case("healthy")
def timm_summary(d: Path) -> Path:
    train = falling(120, 6.7, 2.6, 505, 0.006)
    return timm_csv(d / "summary.csv", train, [v * 0.55 for v in train])  # mixup: eval is lower


@case("healthy")
def timm_console(d: Path) -> Path:
    loss, out = falling(400, 6.93, 2.9, 506, 0.02), []
    for i, v in enumerate(loss):
        e, at = i // 25, i % 25
        out.append(
            f"Train: {e} [{at * 50:4d}/1251 ({100 * at * 50 // 1250:3d}%)]  Loss: {v:#.3g} ({v * 1.01:#.3g})  Time: 0.412s, 2486.11/s  (0.417s, 2454.21/s)  LR: {cosine(400, 1e-3, 20)[i]:.3e}  Data: 0.011 (0.021)"
        )
        if at == 24:
            out.append(
                f"Test: [ 195/195]  Time: 0.071 (0.112)  Loss:  {v * 0.8:6.3f} ({v * 0.8:6.3f})  Acc@1:  61.21 ( 60.11)  Acc@5:  83.11 ( 82.10)"
            )
    return save(d / "train.log", out)


@case("healthy")
def espnet_always_clipped(d: Path) -> Path:
    return save(d / "train.log", espnet(falling(300, 180, 21, 507, 0.03), norms(300, 507, 28)))


@case("healthy")
def nemo_bar(d: Path) -> Path:
    return text(d / "nemo.log", nemo(falling(1000, 10.9, 3.4, 508, 0.015)) + "\n")


@case("healthy")
def colossalai_bar(d: Path) -> Path:
    out = "[03/11/25 10:00:00] INFO     colossalai - colossalai - INFO: /opt/initialize.py:75 launch\n"
    for i, v in enumerate(falling(700, 10.6, 4.1, 509, 0.02)):
        out += f"\rEpoch 0: {100 * (i + 1) // 700:3d}%|{'█' * (i // 70):<10}| {i + 1}/700 [{i // 60:02d}:{i % 60:02d}<07:20,  2.01it/s, Loss={v:.4f}]"
    return text(d / "colossal.log", out + "\n")


@case("healthy")
def jax_absl(d: Path) -> Path:
    return save(d / "train.log", absl(falling(300, 6.9, 1.7, 510, 0.03)))


@case("healthy")
def fairseq_inner_lines(d: Path) -> Path:
    return save(
        d / "train.log", fairseq_text(falling(240, 13.1, 4.6, 511, 0.02), norms(240, 511, 1.0))
    )


@case("healthy")
def keras3_console(d: Path) -> Path:
    loss = falling(30, 1.7, 0.5, 512, 0.01, 0.3)
    return text(d / "keras.txt", keras3(loss, [v * 1.1 for v in loss]))


@case("healthy")
def mmdet_text(d: Path) -> Path:
    return save(
        d / "20250311_100000.log", mmdet(falling(240, 2.6, 0.6, 513, 0.05), norms(240, 513, 4))
    )


@case("healthy")
def mmengine_text(d: Path) -> Path:
    loss = falling(240, 5.9, 1.1, 514, 0.04)
    return save(
        d / "20250311_100000.log",
        [
            f"2025/{clock(i, 20)[5:].replace('-', '/')} - mmengine - INFO - Epoch(train) [{1 + i // 40}][{(i % 40 + 1) * 50:4d}/2000]  lr: 1.0000e-03  eta: 4:11:10  time: 0.4112  data_time: 0.0521  memory: 9121  grad_norm: {3 + i % 4 / 3:.4f}  loss: {v:.4f}"
            for i, v in enumerate(loss)
        ],
    )


@case("healthy")
def detectron2_text(d: Path) -> Path:
    return save(d / "log.txt", detectron2_console(falling(250, 3.4, 0.6, 515, 0.05)))


@case("healthy")
def torchtitan_with_gc_lines(d: Path) -> Path:
    lines = torchtitan(falling(1000, 12.2, 3.6, 516, 0.015), norms(1000, 516, 0.5), 10)
    lines[40:40] = [
        "[rank0]:[titan] 2025-03-11 10:03:01,101 - root - INFO - [GC] Performing periodic GC collection took 0.02 seconds."
    ]
    return save(
        d / "titan.log",
        [*lines, "[rank0]:[titan] 2025-03-11 10:30:01,101 - root - INFO - Training completed"],
    )


@case("healthy")
def wandb_history_sparse_eval(d: Path) -> Path:
    loss = falling(800, 2.4, 0.7, 517, 0.05)
    sparse = {
        i: {"eval/loss": loss[i] * 1.1, "eval/auc": math.nan if i < 200 else 0.7}
        for i in range(199, 800, 200)
    }
    return save(
        d / "wandb-history.jsonl",
        wandb_history({"train/loss": loss, "lr": cosine(800, 3e-4, 20)}, sparse),
    )


@case("healthy")
def structlog_lines(d: Path) -> Path:
    loss = falling(500, 3.3, 1.0, 518, 0.04)
    return save(d / "train.jsonl", structlog([{"loss": v, "lr": 1e-4} for v in loss]))


@case("healthy")
def loguru_serialised(d: Path) -> Path:
    return save(d / "train.json", loguru(falling(400, 2.9, 0.8, 519, 0.04)))


@case("healthy")
def tracker_export_long(d: Path) -> Path:
    return long_csv(
        d / "metrics.csv", {"loss": falling(500, 2.3, 0.4, 520, 0.05), "lr": cosine(500, 1e-3)}
    )


@case("healthy")
def pandas_csv_nan_where_not_evaluated(d: Path) -> Path:
    loss = falling(600, 2.3, 0.4, 521, 0.05)
    rows = ["step,train_loss,val_loss,val_acc"]
    rows += [
        f"{i},{v:.5f},{f'{v * 1.05:.5f}' if i % 50 == 49 else 'NaN'},{0.8 if i % 50 == 49 else 'NaN'}"
        for i, v in enumerate(loss)
    ]
    return save(d / "history.csv", rows)


@case("healthy")
def live_log_ends_inside_a_line(d: Path) -> Path:
    lines = plain(
        falling(420, 2.3, 0.4, 522, 0.05),
        1,
        lambda i: f" | grad_norm {1 + i % 3 / 10:.3f} | lr 1.0e-03",
    )
    return text(d / "train.log", "\n".join(lines) + "\nstep 421 | lo")


@case("healthy")
def epochs_of_a_small_set(d: Path) -> Path:
    """Three epochs: the loss drops at each boundary and creeps up within an epoch."""
    rng = random.Random(523)
    loss = [
        (1.4, 1.05, 0.62)[i // 300] * (1 + 0.05 * (i % 300) / 300) * math.exp(rng.gauss(0, 0.06))
        for i in range(900)
    ]
    return hf_state(
        d / "trainer_state.json",
        hf_rows(loss, norms(900, 523), linear(900, 2e-5, 30), 5, per_epoch=300),
        5,
        900,
    )


@case("healthy")
def lora_changes_little(d: Path) -> Path:
    rng = random.Random(524)
    loss = [1.86 - 0.09 * (1 - math.exp(-i / 150)) + rng.gauss(0, 0.11) for i in range(500)]
    return hf_state(
        d / "trainer_state.json",
        hf_rows(loss, norms(500, 524, 0.3), cosine(500, 2e-4, 15), 1),
        1,
        500,
    )


@case("healthy")
def diffusion_loss_looks_flat(d: Path) -> Path:
    rng = random.Random(525)
    loss = [(0.048 + 0.5 * math.exp(-i / 40)) * math.exp(rng.gauss(0, 0.5)) for i in range(3000)]
    return csv(d / "log.csv", {"loss": loss, "lr": [1e-4] * 3000}, 5)


@case("healthy")
def dpo_margins_grow(d: Path) -> Path:
    rng = random.Random(526)
    lines = []
    for i in range(250):
        m = 2.5 * (1 - math.exp(-i / 90))
        row = {
            "loss": round(math.log(1 + math.exp(-m)) + rng.gauss(0, 0.03), 4),
            "grad_norm": 12.1 * math.exp(rng.gauss(0, 0.2)),
            "learning_rate": 5e-7 * (1 - i / 250),
            "rewards/chosen": round(-0.3 * m, 4),
            "rewards/rejected": round(-1.3 * m, 4),
            "rewards/accuracies": round(0.5 + 0.12 * m, 4),
            "rewards/margins": round(m, 4),
            "logps/chosen": -210.0 - 3 * m,
            "logits/chosen": -2.1,
            "epoch": round(i / 250, 2),
        }
        lines.append(str(row))
    return save(d / "dpo.log", lines)


@case("healthy", "unknown")
def wgan_critic_and_generator(d: Path) -> Path:
    rng = random.Random(527)
    lines = [
        f"[Epoch {i // 40}/20] [Batch {i % 40 * 25}/1000] [D loss: {-18 * math.exp(-i / 200) - 2.5 + rng.gauss(0, 0.6):.6f}] [G loss: {4 * math.sin(i / 60) + rng.gauss(0, 1.5):.6f}]"
        for i in range(800)
    ]
    return save(d / "wgan.log", lines)


@case("healthy", "unknown")
def dqn_returns(d: Path) -> Path:
    rng = random.Random(528)
    lines = [
        f"Episode {i} | return {20 + 0.35 * i + rng.gauss(0, 30):.1f} | avg100 {20 + 0.33 * i:.1f} | epsilon {max(0.05, 1 - i / 200):.3f} | td_loss {0.4 + 0.002 * i + abs(rng.gauss(0, 0.25)):.4f}"
        for i in range(500)
    ]
    return save(d / "dqn.log", lines)


@case("healthy")
def vae_kl_term_rises(d: Path) -> Path:
    rng = random.Random(529)
    recon = falling(900, 190, 88, 529, 0.02)
    kl = [23 * (1 - math.exp(-i / 90)) + abs(rng.gauss(0, 0.4)) for i in range(900)]
    total = [a + b for a, b in zip(recon, kl, strict=True)]
    return jsonl(d / "vae.jsonl", {"loss": total, "recon_loss": recon, "kl_loss": kl}, 2)


@case("healthy")
def cosine_to_exactly_zero(d: Path) -> Path:
    rate = [*cosine(990, 3e-4, 40), *[0.0] * 10]
    return jsonl(d / "m.jsonl", {"loss": falling(1000, 4.0, 1.4, 530, 0.03), "lr": rate}, 5)


@case("healthy")
def warm_restarts_by_epoch(d: Path) -> Path:
    loss = falling(150, 2.1, 0.35, 531, 0.03)
    for at in (31, 91):
        loss = bump(loss, at, 0.45, 6)
    rate = [cosine(30, 0.05)[i] if i < 30 else cosine(60, 0.05)[(i - 30) % 60] for i in range(150)]
    rows = [
        f"Epoch: {e:03d} lr: {rate[e]:.5f} train loss: {v:.4f} val loss: {v * 1.15:.4f} val acc: {70 + e / 10:.2f}"
        for e, v in enumerate(loss)
    ]
    return save(d / "sgdr.log", rows)


@case("healthy")
def csv_resumed_with_repeated_steps(d: Path) -> Path:
    loss = falling(1000, 5.0, 1.5, 532, 0.03)
    again = falling(1000, 5.0, 1.5, 533, 0.03)
    rows = ["step,loss,lr"]
    rows += [f"{i},{loss[i]:.5f},0.0003" for i in range(0, 560, 2)]
    rows += [f"{i},{again[i]:.5f},0.0003" for i in range(400, 1000, 2)]
    return save(d / "log.csv", rows)


@case("healthy")
def lightning_early_stopping(d: Path) -> Path:
    loss = falling(22, 1.4, 0.5, 534, 0.02, 0.2)
    best = 9e9
    out = []
    for e, v in enumerate(loss):
        val = v * 1.1 if e < 19 else 0.71 + e / 400
        out.append(
            f"Epoch {e}: 100%|██████████| 313/313 [00:12<00:00, 25.1it/s, v_num=0, train_loss={v:.3f}, val_loss={val:.3f}]"
        )
        if val < best:
            out.append(
                f"Metric val_loss improved by 0.011 >= min_delta = 0.0. New best score: {val:.3f}"
            )
            best = val
    out.append(
        "Monitored metric val_loss did not improve in the last 3 records. Best score: 0.642. Signaling Trainer to stop."
    )
    return save(d / "lightning.log", out)


@case("healthy")
def tiny_distillation_loss(d: Path) -> Path:
    loss = falling(800, 4e-4, 2.2e-6, 535, 0.04)
    return jsonl(d / "kd.jsonl", {"mse": loss, "lr": cosine(800, 1e-3)}, 2)


@case("healthy")
def contrastive_leaves_ln_b_late(d: Path) -> Path:
    loss = [*around(200, math.log(256), 536, 0.004), *falling(800, math.log(256), 1.9, 537, 0.02)]
    return jsonl(
        d / "clip.jsonl", {"loss": loss, "logit_scale": [14.3 + i / 20 for i in range(1000)]}, 2
    )


@case("healthy")
def memorised_small_set(d: Path) -> Path:
    rng = random.Random(538)
    loss = [2.3 * math.exp(-i / 60) + 3e-4 * math.exp(rng.gauss(0, 0.4)) for i in range(900)]
    return csv(
        d / "log.csv", {"train_loss": loss, "train_acc": [min(1.0, i / 200) for i in range(900)]}, 3
    )


@case("healthy")
def unfrozen_backbone(d: Path) -> Path:
    first = falling(20, 1.6, 0.9, 539, 0.02, 0.3)
    second = bump(falling(40, 0.95, 0.4, 540, 0.02, 0.3), 1, 0.25, 2)
    rows = [
        f"epoch {e} | {'head' if e < 20 else 'all'} | lr {1e-3 if e < 20 else 1e-4:.0e} | train_loss {v:.4f} | valid_loss {v * 1.08:.4f} | time 31.2s"
        for e, v in enumerate([*first, *second])
    ]
    return save(d / "transfer.log", rows)


@case("healthy")
def gzipped_jsonl(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    rows = "\n".join(
        json.dumps({"step": i * 10, "loss": v}) for i, v in enumerate(falling(400, 3, 1, 541, 0.04))
    )
    (d / "metrics.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    return d / "metrics.jsonl.gz"


@case("healthy", runs={"seed1": "healthy", "seed2": "healthy", "seed3": "healthy"})
def tensorboard_three_seeds(d: Path) -> Path:
    for seed in (1, 2, 3):
        loss = falling(1000, 3.0, 0.8, 541 + seed, 0.04)
        tensorboard(
            d / f"runs/seed{seed}/events.out.tfevents.174168720{seed}.n1.88.0",
            {
                "loss/train": [(s, loss[s]) for s in range(0, 1000, 5)],
                "loss/val": [(s, loss[s] * 1.05) for s in range(99, 1000, 100)],
            },
        )
    return d / "runs"


@case("healthy")
def wandb_offline_finished(d: Path) -> Path:
    columns = {
        "train/loss": falling(500, 2.9, 0.9, 545, 0.04),
        "train/grad_norm": norms(500, 545),
        "gpu_mem_gb": around(500, 31.0, 545, 0.002),
    }
    return wandb(d / "wandb/offline-run-20250311_100000-q1w2e3r4/run-q1w2e3r4.wandb", columns)


@case("healthy")
def mlflow_folder_one_run(d: Path) -> Path:
    return (
        mlflow_folder(
            d,
            "f00",
            {
                "train_loss": falling(300, 2.3, 0.5, 546, 0.04),
                "val_loss": falling(30, 2.2, 0.6, 547, 0.02),
            },
        )
        / "mlruns"
    )


@case("healthy", runs={"base": "healthy", "wide": "healthy"})
def trackio_two_runs(d: Path) -> Path:
    return trackio_db(
        d / "p.db",
        {
            "base": {"loss": falling(300, 2.3, 0.5, 548, 0.04)},
            "wide": {"loss": falling(300, 2.3, 0.4, 549, 0.04)},
        },
    )


@case("healthy")
def caches_fill_then_stay(d: Path) -> Path:
    rng = random.Random(550)
    rss = [min(4200 + 21 * i, 11800) + rng.gauss(0, 20) for i in range(1200)]
    return csv(
        d / "log.csv",
        {
            "loss": falling(1200, 3, 1, 550),
            "rss_mb": rss,
            "mem/vram_used_gib": around(1200, 33.1, 550, 0.003),
        },
        4,
    )


@case("healthy")
def memory_falls_after_each_epoch(d: Path) -> Path:
    rss = [9000 + 12 * (i % 200) for i in range(1200)]
    return jsonl(d / "m.jsonl", {"loss": falling(1200, 3, 1, 551), "proc/rss_mb": rss}, 4)


@case("healthy")
def adversarial_term_with_sign(d: Path) -> Path:
    """A domain classifier behind a reversed gradient: its loss is meant to rise to ln 2."""
    rng = random.Random(552)
    task = falling(600, 2.3, 0.5, 552, 0.04)
    domain = [math.log(2) * (1 - 0.8 * math.exp(-i / 120)) + rng.gauss(0, 0.01) for i in range(600)]
    lines = [
        f"iter {i} | task_loss {task[i]:.4f} | domain_loss {domain[i]:.4f} | lr 1.0e-03"
        for i in range(600)
    ]
    return save(d / "dann.log", lines)


@case("healthy")
def single_spikes_that_recover(d: Path) -> Path:
    loss = falling(2000, 10.8, 3.0, 553, 0.015)
    for at in (700, 1100):
        loss = bump(loss, at, 0.8, 8)
    return save(
        d / "train.log",
        [f"{i}/2000 loss={v:.4f} lr=3.00e-04 tok/s=121k" for i, v in enumerate(loss)],
    )


@case("healthy")
def markdown_table(d: Path) -> Path:
    loss = falling(24, 1.9, 0.5, 554, 0.02, 0.3)
    rows = [
        "| Epoch | Training Loss | Validation Loss | F1 |",
        "|-------|---------------|-----------------|------|",
    ]
    rows += [
        f"| {e + 1} | {v:.6f} | {v * 1.1:.6f} | {0.5 + e / 60:.4f} |" for e, v in enumerate(loss)
    ]
    return save(d / "results.md", rows)


@case("healthy")
def tqdm_postfix_bar(d: Path) -> Path:
    out = ""
    for i, v in enumerate(falling(800, 2.3, 0.5, 555, 0.04)):
        out += f"\r{100 * (i + 1) // 800:3d}%|{'█' * (i // 80):<10}| {i + 1}/800 [{i // 60:02d}:{i % 60:02d}<05:00,  1.90it/s, loss=\x1b[0m{v:.3f}, acc={min(0.99, i / 900):.2%}]"
    return text(d / "bar.log", out)


@case("healthy")
def hf_state_eval_only_rises_a_little(d: Path) -> Path:
    rows = hf_rows(
        falling(900, 1.9, 1.2, 556, 0.05), norms(900, 556), cosine(900, 1e-5, 30), 10, per_epoch=300
    )
    for e, value in enumerate((1.31, 1.262, 1.268)):
        rows.insert(
            31 * (e + 1) - 1,
            {"epoch": e + 1.0, "eval_loss": value, "eval_runtime": 31.2, "step": 300 * (e + 1)},
        )
    return hf_state(d / "trainer_state.json", rows, 10, 900)


@case("healthy")
def grad_scaler_grows_and_halves(d: Path) -> Path:
    scale = [65536.0 * 2 ** (i // 200 % 2) for i in range(1200)]
    return csv(
        d / "amp.csv",
        {"loss": falling(1200, 3, 1, 557), "loss_scale": scale, "grad_norm": norms(1200, 557)},
        3,
    )


@case("healthy")
def validation_step_time_jumps(d: Path) -> Path:
    """The node is shared: step times wander, with no trend."""
    rng = random.Random(558)
    took = [
        0.4 * math.exp(rng.gauss(0, 0.25)) * (1.6 if i // 90 % 4 == 2 else 1) for i in range(1080)
    ]
    return jsonl(d / "m.jsonl", {"loss": falling(1080, 3, 1, 558), "iter_time_s": took}, 2)


@case("healthy", "unknown")
def only_metrics_no_loss(d: Path) -> Path:
    return csv(
        d / "eval.csv",
        {
            "bleu": [20 + 10 * (1 - math.exp(-i / 20)) for i in range(60)],
            "chrf": [40 + i / 10 for i in range(60)],
        },
    )


# Words in a log that frighten, and curves that only look odd.


@case("healthy")
def batch_size_found_by_running_out_of_memory(d: Path) -> Path:
    out = [
        "trying per_device_batch_size=64",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Decreasing batch size to: 32.",
        "trying per_device_batch_size=32",
    ]
    return save(d / "run.log", [*out, *plain(falling(400, 2.3, 0.5, 560, 0.05)), "training done"])


@case("healthy")
def tracker_network_traceback_in_the_middle(d: Path) -> Path:
    lines = plain(falling(400, 2.3, 0.5, 561, 0.05))
    lines[200:200] = [
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3/site-packages/urllib3/connectionpool.py", line 466, in _make_request',
        "    six.raise_from(e, None)",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out.",
        "wandb: Network error resolved after 0:00:31, resuming normal operation.",
    ]
    return save(d / "run.log", lines)


@case("healthy")
def samples_with_frightening_words(d: Path) -> Path:
    lines = plain(falling(400, 2.3, 0.5, 562, 0.05), 1, lambda i: " lr 3.0e-04")
    for at in (100, 200, 300):
        lines[at:at] = [
            "sample: 'The king was killed in the war, an error that nobody could explain.'"
        ]
    lines.append("sample: 'Killed by a falling tree, he left nan bread on the table.'")
    return save(d / "run.log", lines)


@case("healthy")
def exit_code_zero(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.5, 563, 0.05)),
            "saved final checkpoint to out/final.safetensors",
            "Process finished with exit code 0",
        ],
    )


@case("healthy")
def error_rate_column(d: Path) -> Path:
    loss = falling(90, 2.3, 0.4, 564, 0.03)
    rows = ["epoch,train_loss,valid_loss,error_rate,killed_units,time"]
    rows += [
        f"{e},{v:.6f},{v * 1.1:.6f},{0.5 * math.exp(-e / 30) + 0.05:.6f},0,00:31"
        for e, v in enumerate(loss)
    ]
    return save(d / "history.csv", rows)


@case("healthy")
def rates_of_two_groups(d: Path) -> Path:
    """One group frozen: its learning rate is 0 from the first step to the last."""
    rate = cosine(800, 1e-3, 40)
    return csv(
        d / "log.csv",
        {"loss": falling(800, 2.3, 0.5, 565, 0.04), "lr/group0": [0.0] * 800, "lr/group1": rate},
        2,
    )


@case("healthy")
def policy_entropy_falls_and_term_at_zero_at_first(d: Path) -> Path:
    """An auxiliary loss that is switched on after a warm-up."""
    main = falling(900, 2.5, 0.9, 566, 0.03)
    aux = [0.0 if i < 200 else 0.3 * math.exp(-(i - 200) / 400) for i in range(900)]
    return jsonl(
        d / "m.jsonl",
        {
            "loss": [a + b for a, b in zip(main, aux, strict=True)],
            "loss_main": main,
            "loss_aux": aux,
        },
        3,
    )


@case("healthy")
def ppl_falls_from_a_great_height(d: Path) -> Path:
    loss = falling(500, 10.8, 3.3, 567, 0.015)
    return save(
        d / "lm.log",
        [
            f"| epoch {1 + i // 100:3d} | {(i % 100) * 200:5d}/20000 batches | lr 5.00 | ms/batch 21.31 | loss {v:5.2f} | ppl {math.exp(v):8.2f}"
            for i, v in enumerate(loss)
        ],
    )


@case("healthy")
def batches_of_very_different_length(d: Path) -> Path:
    """A sum over tokens: the loss follows the length of the batch, by a factor of two or three."""
    rng = random.Random(568)
    mean = falling(1200, 6.0, 2.2, 568, 0.02)
    tokens = [rng.choice((200, 350, 500, 650)) for _ in range(1200)]
    return csv(
        d / "log.csv",
        {"loss_sum": [m * t for m, t in zip(mean, tokens, strict=True)], "ntokens": tokens},
        2,
    )


@case("healthy", "unknown")
def actor_critic_console(d: Path) -> Path:
    rng = random.Random(569)
    lines = [
        f"Updates {i}, num timesteps {i * 640}, FPS 812, mean/median reward {20 + i / 4 + rng.gauss(0, 8):.1f}/{20 + i / 4:.1f}, entropy {1.38 - i / 900:.4f}, value loss {abs(rng.gauss(0.4, 0.2)):.4f}, policy loss {rng.gauss(0, 0.03):.4f}"
        for i in range(400)
    ]
    return save(d / "a2c.log", lines)


@case("healthy")
def evaluation_much_higher_than_training(d: Path) -> Path:
    """Another domain: validation stays far above training, and falls with it."""
    loss = falling(60, 2.2, 0.5, 570, 0.02, 0.2)
    return save(
        d / "t.log",
        [
            f"Epoch [{e + 1}/60], Train Loss: {v:.4f}, Val Loss: {v + 2.4:.4f}"
            for e, v in enumerate(loss)
        ],
    )
