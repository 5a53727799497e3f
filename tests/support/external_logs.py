"""Logs as people really have them, each with what a diagnosis should say of it.

They were written by somebody who had not read the readers or the checks: faults with a known onset,
and healthy runs of many kinds. A case names the first cause, the step it begins at, give or take
one logging interval, and the exit code.
"""

# Lines are as the tools write them.
# ruff: noqa: E501, PERF401
from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.external_log_simulators import (
    INF,
    NAN,
    around,
    bump,
    cosine,
    every,
    falling,
    linear,
    lost_from,
    norms,
    once,
    rising,
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
    with_evals,
)


@dataclass(frozen=True)
class Outside:
    """One log and what is right for it. `code` None means a healthy run."""

    name: str
    write: Callable[[Path], Path]
    code: str | None
    step: int | None
    within: int
    exit: int
    others: tuple[str, ...]
    reader: str | None


CASES: list[Outside] = []


def case(
    code: str | None = None,
    step: int | None = None,
    within: int = 1,
    exit: int | None = None,
    others: tuple[str, ...] = (),
    reader: str | None = None,
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a writer of a log. `others` are first causes that would be as right."""

    def add(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        mild = {"HD103", "HD107", "HD207", "HD208", "HD405", "HD406", "HD414", "HD804"}
        wanted = exit if exit is not None else int(code is not None and code not in mild)
        CASES.append(Outside(write.__name__, write, code, step, within, wanted, others, reader))
        return write

    return add


# Hugging Face: trainer_state.json


@case(reader="hf-trainer")
def hf_healthy_every_10(d: Path) -> Path:
    rows = hf_rows(falling(1200, 2.4, 0.9, 1), norms(1200, 1), linear(1200, 5e-5, 100), 10)
    return hf_state(d / "trainer_state.json", with_evals(rows, 200), 10, 1200)


@case()
def hf_healthy_every_1_fp16_first_skips(d: Path) -> Path:
    norm = norms(300, 2)
    norm[0], norm[1], norm[5] = NAN, INF, NAN
    rows = hf_rows(falling(300, 1.2, 0.3, 2, 0.15), norm, linear(300, 2e-5), 1)
    return hf_state(d / "trainer_state.json", rows, 1, 300)


@case()
def hf_healthy_every_500(d: Path) -> Path:
    rows = hf_rows(falling(10000, 5, 2.6, 3), None, linear(10000, 1e-4, 500), 500)
    return hf_state(
        d / "checkpoint-10000" / "trainer_state.json", with_evals(rows, 1000), 500, 10000
    )


@case()
def hf_healthy_lora_plateau(d: Path) -> Path:
    rows = hf_rows(
        falling(600, 1.35, 0.82, 4, 0.08, 0.03), norms(600, 4, 0.35), cosine(600, 2e-4, 20), 5
    )
    return hf_state(d / "trainer_state.json", with_evals(rows, 100), 5, 600)


@case()
def hf_healthy_converged_to_zero(d: Path) -> Path:
    loss = [max(v - 0.01, 0.00001) for v in falling(2000, 0.7, 0.0, 5, 0.3, 0.01)]
    loss = [v * math.exp(-i / 100) for i, v in enumerate(loss)]
    norm = [n * math.exp(-i / 150) + 1e-5 for i, n in enumerate(norms(2000, 5))]
    rows = hf_rows(loss, norm, linear(2000, 5e-5), 50)
    return hf_state(d / "trainer_state.json", with_evals(rows, 400), 50, 2000)


@case("HD102", 410, 10, others=("HD201",))
def hf_filtered_nan_to_the_end(d: Path) -> Path:
    loss = lost_from(falling(1000, 2.2, 1.0, 6), 405)
    norm = lost_from(norms(1000, 6), 405)
    rows = hf_rows(loss, norm, linear(1000, 5e-5, 50), 10)
    return hf_state(
        d / "trainer_state.json", with_evals(rows, 500, {500: NAN, 1000: NAN}), 10, 1000
    )


@case("HD102", 1, 1, others=("HD201",))
def hf_filtered_nan_from_the_start(d: Path) -> Path:
    rows = hf_rows([NAN] * 80, [NAN] * 80, linear(80, 2e-4), 1)
    return hf_state(d / "trainer_state.json", rows, 1, 80)


@case("HD201", 350, 50, exit=0)
def hf_nan_gradient_once(d: Path) -> Path:
    loss = falling(2000, 3.0, 1.4, 7)
    rows = hf_rows(loss, once(norms(2000, 7), 350, NAN), cosine(2000, 1e-4, 100), 50)
    return hf_state(d / "trainer_state.json", rows, 50, 2000)


@case("HD101", 260, 10)
def hf_unfiltered_nan(d: Path) -> Path:
    loss = lost_from(falling(800, 2.2, 1.0, 8), 255)
    rows = hf_rows(loss, lost_from(norms(800, 8), 256), linear(800, 5e-5, 50), 10, filtered=False)
    return hf_state(d / "trainer_state.json", rows, 10, 800, done=False)


@case("HD104", 600, 60)
def hf_divergence(d: Path) -> Path:
    loss = rising(falling(1500, 4.0, 2.0, 9), 600, 0.02, 7.5)
    rows = hf_rows(loss, norms(1500, 9, 1.5), cosine(1500, 1e-3, 50), 10)
    return hf_state(d / "trainer_state.json", rows, 10, 1500)


@case("HD105", None, 10)
def hf_stalled_at_ln2(d: Path) -> Path:
    loss = around(1500, math.log(2), 10, 0.02)
    rows = hf_rows(loss, norms(1500, 10, 0.8, 1.5), linear(1500, 2e-5, 100), 10)
    return hf_state(d / "trainer_state.json", with_evals(rows, 500), 10, 1500)


@case("HD406", 500, 10)
def hf_rate_jump_at_resume(d: Path) -> Path:
    loss = falling(1000, 3.0, 1.2, 11)
    rate = cosine(1000, 1e-4, 50)
    rate[500:] = [1e-3] * 500
    rows = hf_rows(loss, norms(1000, 11), rate, 10)
    return hf_state(d / "checkpoint-1000" / "trainer_state.json", rows, 10, 1000)


@case("HD208", None, 50)
def hf_clip_saturated_config_beside(d: Path) -> Path:
    rows = hf_rows(
        falling(1500, 3.2, 2.0, 12), norms(1500, 12, 50, 1.2), linear(1500, 5e-5, 50), 10
    )
    (d / "training_args.json").write_text(json.dumps({"max_grad_norm": 1.0, "learning_rate": 5e-5}))
    return hf_state(d / "trainer_state.json", rows, 10, 1500).parent


@case("HD101", 250, 10, others=("HD102", "HD201"))
def hf_folder_nan_only_in_console(d: Path) -> Path:
    loss = lost_from(falling(300, 2.2, 1.0, 13), 245)
    norm = lost_from(norms(300, 13), 245)
    rows = hf_rows(loss, norm, linear(300, 5e-5), 10, filtered=False)
    for at in (100, 200):
        hf_state(
            d / f"checkpoint-{at}" / "trainer_state.json", rows[: at // 10], 10, 300, done=False
        )
    save(d / "console.log", hf_console(rows, 300))
    return d


@case()
def hf_folder_healthy_with_console(d: Path) -> Path:
    rows = hf_rows(falling(300, 2.2, 1.0, 14), norms(300, 14), linear(300, 5e-5), 10)
    for at in (100, 200, 300):
        hf_state(
            d / f"checkpoint-{at}" / "trainer_state.json", rows[: at // 10], 10, 300, done=False
        )
    save(d / "console.log", hf_console(rows, 300))
    return d


# Hugging Face: consoles


@case()
def hf_console_healthy(d: Path) -> Path:
    rows = hf_rows(falling(600, 2.2, 1.0, 15), norms(600, 15), linear(600, 5e-5, 30), 10)
    return save(d / "slurm-123.out", hf_console(with_evals(rows, 100), 600))


@case("HD102", 320, 10, others=("HD201",))
def hf_console_strings_filtered(d: Path) -> Path:
    loss, norm = lost_from(falling(600, 2.2, 1.0, 16), 311), lost_from(norms(600, 16), 311)
    rows = hf_rows(loss, norm, linear(600, 5e-5, 30), 10)
    return save(d / "nohup.out", hf_console(rows, 600, strings=True))


@case("HD202", 150, 60, others=("HD201",))
def hf_console_norm_grows_then_nan(d: Path) -> Path:
    norm = norms(400, 17, 0.8)
    norm = [n * (1.06 ** max(0, i - 149)) for i, n in enumerate(norm)]
    norm = lost_from(norm, 340)
    loss = lost_from(falling(400, 3.0, 1.8, 17), 341)
    rows = hf_rows(loss, norm, [3e-4] * 400, 1, filtered=False)
    return save(d / "train.log", hf_console(rows, 400))


@case()
def hf_console_colab_table(d: Path) -> Path:
    loss = falling(10, 0.6, 0.2, 18, 0.02, 0.3)
    lines = ["Epoch\tTraining Loss\tValidation Loss\tAccuracy"]
    lines += [
        f"{i + 1}\t{v:.6f}\t{v * 1.1 + 0.05:.6f}\t{0.7 + 0.02 * i:.6f}" for i, v in enumerate(loss)
    ]
    return save(d / "table.txt", lines)


# Megatron, NeMo, torchtitan, nanotron, OLMo


@case()
def megatron_healthy_fp16(d: Path) -> Path:
    scale = [4294967296.0 / 2 ** min(i // 2, 14) if i < 60 else 262144.0 for i in range(3000)]
    skipped = [1 if i < 30 and i % 2 else 0 for i in range(3000)]
    return save(
        d / "log.txt",
        megatron(
            falling(3000, 10.8, 2.9, 20, 0.01),
            norms(3000, 20, 0.4, 20),
            cosine(3000, 1.5e-4, 200, 1e-5),
            10,
            3000,
            scale,
            skipped,
        ),
    )


@case("HD101", 1230, 10)
def megatron_nan_to_the_end(d: Path) -> Path:
    loss = lost_from(falling(2000, 10.8, 3.0, 21, 0.01), 1225)
    norm = lost_from(norms(2000, 21, 0.4, 20), 1225)
    return save(d / "node0.log", megatron(loss, norm, cosine(2000, 3e-4, 100), 10, 2000))


@case("HD103", 900, 10, exit=0, others=("HD207",))
def megatron_spike_and_recovery(d: Path) -> Path:
    loss = bump(falling(2000, 10.8, 3.0, 22, 0.01), 900, 3.5, 40)
    norm = bump(norms(2000, 22, 0.4, 20), 900, 30, 12)
    return save(d / "log.txt", megatron(loss, norm, cosine(2000, 3e-4, 100), 10, 2000))


@case("HD414", 1000, 30, others=("HD313",))
def megatron_silent_skips(d: Path) -> Path:
    rng = random.Random(23)
    skipped = [int(i >= 1000 and rng.random() < 0.5) for i in range(2000)]
    return save(
        d / "log.txt",
        megatron(
            falling(2000, 10.8, 3.0, 23, 0.01),
            norms(2000, 23, 0.4, 20),
            cosine(2000, 3e-4, 100),
            10,
            2000,
            [65536.0] * 2000,
            skipped,
        ),
    )


@case("HD313", 700, 150)
def megatron_loss_scale_to_one(d: Path) -> Path:
    scale = [65536.0 / 2 ** min(max(0, i - 700) // 20, 16) for i in range(1500)]
    skipped = [int(i > 700 and (i - 700) % 20 == 0) if i < 1020 else 1 for i in range(1500)]
    loss = falling(1500, 10.8, 3.6, 24, 0.01)
    return save(
        d / "log.txt",
        megatron(loss, norms(1500, 24, 0.4, 20), cosine(1500, 3e-4, 100), 10, 1500, scale, skipped),
    )


@case()
def megatron_healthy_resume(d: Path) -> Path:
    n = 2000
    loss, norm, rate = falling(n, 10.8, 3.0, 25, 0.01), norms(n, 25, 0.4, 20), cosine(n, 3e-4, 100)
    one = megatron(loss[:1000], norm[:1000], rate[:1000], 10, n)
    two = megatron(loss[900:], norm[900:], rate[900:], 10, n, first=900)
    return save(
        d / "log.txt",
        [*one, "slurmstepd: error: *** JOB 123 CANCELLED DUE TO PREEMPTION ***", *two],
    )


@case("HD804", None, 2000, others=())
def megatron_slower_and_slower(d: Path) -> Path:
    ms = [1300 + 1.5 * i + (i % 7) for i in range(2000)]
    return save(
        d / "log.txt",
        megatron(
            falling(2000, 10.8, 3.0, 26, 0.01),
            norms(2000, 26, 0.4, 20),
            cosine(2000, 3e-4, 100),
            10,
            2000,
            ms=ms,
        ),
    )


def _nemo(loss: list[float], rate: list[float], k: int = 1, start: int = 0) -> list[str]:
    out = [
        "[NeMo I 2025-03-11 10:00:00 nemo_logging:381] Rank 0 has data parallel group : [0]",
        "GPU available: True (cuda), used: True",
        "  | Name   | Type | Params | Mode ",
        "0 | module | DDP  | 8.0 B  | train",
    ]
    for i in range(0, len(loss), k):
        out.append(
            f"Training epoch 0, iteration {start + i}/{len(loss) - 1} | lr: {rate[i]:.4g} | global_batch_size: 32 | "
            f"global_step: {start + i} | reduced_train_loss: {loss[i]:.4g} | train_step_timing in s: {1.31 + i % 5 / 100:.4g}"
            + (f" | consumed_samples: {32 * i}" if i else "")
        )
    return out


@case()
def nemo_healthy(d: Path) -> Path:
    return save(d / "nemo.log", _nemo(falling(400, 11.0, 5.0, 27, 0.01), cosine(400, 3e-4, 50)))


@case("HD101", 222, 1)
def nemo_nan(d: Path) -> Path:
    loss = lost_from(falling(400, 11.0, 5.0, 28, 0.01), 223)
    return save(d / "nemo.log", _nemo(loss, cosine(400, 3e-4, 50)))


@case()
def torchtitan_healthy(d: Path) -> Path:
    return save(
        d / "t.log", torchtitan(falling(1000, 12.2, 3.4, 29, 0.01), norms(1000, 29, 0.5, 8), 10)
    )


@case("HD101", 560, 10, others=("HD201",))
def torchtitan_nan(d: Path) -> Path:
    loss, norm = lost_from(falling(1000, 12.2, 3.4, 30, 0.01), 555), lost_from(norms(1000, 30), 555)
    return save(d / "t.log", torchtitan(loss, norm, 10))


@case("HD201", 600, 10, others=())
def torchtitan_nan_gradient_loss_finite(d: Path) -> Path:
    loss, norm = falling(1000, 12.2, 3.4, 31, 0.01), lost_from(norms(1000, 31), 600)
    return save(d / "t.log", torchtitan(loss, norm, 10))


@case("HD802", None, 1000)
def torchtitan_device_memory_climbs(d: Path) -> Path:
    memory = [20 + 0.05 * i for i in range(1000)]
    return save(
        d / "t.log", torchtitan(falling(1000, 12.2, 3.4, 32, 0.01), norms(1000, 32), 10, memory)
    )


def _nanotron(loss: list[float], norm: list[float], rate: list[float], k: int) -> list[str]:
    pre = "[INFO|DP=0|PP=0|TP=0|ip-26-0-161-78]:"
    out = [
        f"03/11/2025 10:00:00 {pre} Config:",
        f"03/11/2025 10:00:00 {pre}  optimizer=OptimizerArgs(clip_grad=1.0",
    ]
    for s in every(len(loss), k):
        out.append(
            f"03/11/2025 10:{s // 60 % 60:02d}:{s % 60:02d} {pre} iteration: {s} / {len(loss)} | consumed_tokens: {s * 2.1:.3g}M | "
            f"elapsed_time_per_iteration_ms: 2.51K | tokens_per_sec: 835K | tokens_per_sec_per_gpu: 13.1K | global_batch_size: 1.02K | "
            f"lm_loss: {loss[s - 1]:.3g} | lr: {rate[s - 1]:.3g} | model_tflops_per_gpu: 123 | hardware_tflops_per_gpu: 123 | grad_norm: {norm[s - 1]:.3g} | "
            "cuda_memory_allocated: 5.1G | cuda_max_memory_reserved: 9.8G | hd_total_memory_tb: 312G"
        )
    return out


@case()
def nanotron_healthy(d: Path) -> Path:
    return save(
        d / "l.out",
        _nanotron(
            falling(2000, 10.9, 2.8, 33, 0.01), norms(2000, 33, 0.5, 8), cosine(2000, 3e-4, 200), 10
        ),
    )


@case("HD104", 800, 100)
def nanotron_divergence(d: Path) -> Path:
    loss = rising(falling(2000, 10.9, 2.8, 34, 0.01), 800, 0.02, 7.6)
    return save(d / "l.out", _nanotron(loss, norms(2000, 34, 0.5, 8), cosine(2000, 3e-3, 200), 10))


def _olmo(loss: list[float], norm: list[float], rate: list[float], k: int) -> list[str]:
    out = []
    for s in every(len(loss), k):
        out += [
            f"{clock(s)}.123\tjupiter-cs-aus-133:0\tolmo.train:967\tINFO\t[step={s}/739328,epoch=0]",
            f"    optim/total_grad_norm={norm[s - 1]:.4g}",
            f"    optim/learning_rate_group0={rate[s - 1]:.4g}",
            f"    train/CrossEntropyLoss={loss[s - 1]:.4g}",
            f"    train/Perplexity={math.exp(min(loss[s - 1], 50)) if math.isfinite(loss[s - 1]) else NAN:,.2f}",
            "    throughput/total_tokens=4,194,304",
            "    throughput/device/tokens_per_second=9,571",
            "    System/Peak GPU Memory (MB)=48,211",
        ]
    return out


@case()
def olmo_healthy(d: Path) -> Path:
    return save(
        d / "olmo.log",
        _olmo(
            falling(1500, 11.1, 2.9, 35, 0.01), norms(1500, 35, 0.6, 8), cosine(1500, 4e-4, 200), 10
        ),
    )


@case("HD103", 700, 10, exit=0, others=("HD207",))
def olmo_spike(d: Path) -> Path:
    loss = bump(falling(1500, 11.1, 2.9, 36, 0.01), 695, 2.5, 30)
    return save(d / "olmo.log", _olmo(loss, norms(1500, 36, 0.6, 8), cosine(1500, 4e-4, 200), 10))


# DeepSpeed, nanoGPT, verl, timm, mmengine


def _deepspeed(
    loss: list[float], rate: list[float], scale: list[float], skip: list[int], k: int
) -> list[str]:
    out = [
        "[2025-03-11 10:00:00,101] [INFO] [real_accelerator.py:222:get_accelerator] Setting ds_accelerator to cuda (auto detect)",
        "[2025-03-11 10:00:03,101] [INFO] [config.py:1003:print]   gradient_clipping ............ 1.0",
        "[2025-03-11 10:00:03,101] [INFO] [config.py:1003:print]   initial_dynamic_scale ........ 65536",
    ]
    total = 0
    for i in range(len(loss)):
        if skip[i]:
            total += 1
            out.append(
                f"[{clock(i)},512] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
                f"Attempted loss scale: {int(scale[i] * 2)}, reducing to {int(scale[i])}"
            )
        s = i + 1
        if s % k == 0:
            out.append(
                f"[{clock(s)},721] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped={total}, lr=[{rate[i]:.6g}, {rate[i]:.6g}], mom=[(0.9, 0.95), (0.9, 0.95)]"
            )
            out.append(f"steps: {s} loss: {loss[i]:.4f} iter time (s): 1.312 samples/sec: 24.390")
    return out


@case()
def deepspeed_healthy(d: Path) -> Path:
    skip = [int(i in (0, 1, 2, 640)) for i in range(1000)]
    scale = [65536.0 / 2 ** sum(skip[: i + 1]) for i in range(1000)]
    return save(
        d / "ds.log",
        _deepspeed(falling(1000, 9.0, 3.4, 37, 0.02), cosine(1000, 1e-4, 50), scale, skip, 10),
    )


@case("HD313", 500, 30, others=("HD414",))
def deepspeed_scale_collapses(d: Path) -> Path:
    skip = [int(i in (0, 1) or i >= 500) for i in range(620)]
    scale = [max(65536.0 / 2 ** sum(skip[: i + 1]), 1) for i in range(620)]
    lines = _deepspeed(falling(620, 9.0, 3.4, 38, 0.02), cosine(620, 1e-4, 50), scale, skip, 10)
    lines.append(
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    )
    return save(d / "ds.log", lines)


def _nanogpt(loss: list[float], k: int, ms: list[float] | None = None) -> list[str]:
    out = [
        "Overriding: batch_size = 12",
        "tokens per iteration will be: 491,520",
        "number of parameters: 123.59M",
        "num decayed parameter tensors: 50, with 124,354,560 parameters",
        "using fused AdamW: True",
    ]
    for i in range(0, len(loss), k):
        if i % 250 == 0:
            out.append(f"step {i}: train loss {loss[i] * 1.01:.4f}, val loss {loss[i] * 1.02:.4f}")
            out.append("saving checkpoint to out")
        out.append(
            f"iter {i}: loss {loss[i]:.4f}, time {(ms[i] if ms else 243.1):.2f}ms, mfu 38.12%"
        )
    return out


@case()
def nanogpt_healthy(d: Path) -> Path:
    return save(d / "out.txt", _nanogpt(falling(3000, 10.9, 3.2, 39, 0.02), 10))


@case("HD101", 1510, 10)
def nanogpt_nan(d: Path) -> Path:
    return save(d / "out.txt", _nanogpt(lost_from(falling(2500, 10.9, 3.2, 40, 0.02), 1505), 10))


@case("HD105", None, 3000)
def nanogpt_stalled_at_ln_vocab(d: Path) -> Path:
    return save(d / "out.txt", _nanogpt(around(3000, math.log(50304), 41, 0.002), 10))


def _verl(n: int, seed: int, nan_at: int | None = None) -> list[str]:
    rng = random.Random(seed)
    out = ["(TaskRunner pid=12345) Training Progress:   0%|          | 0/435 [00:00<?, ?it/s]"]
    for s in range(1, n + 1):
        bad = nan_at is not None and s >= nan_at
        reward = 0.1 + 0.5 * s / n + rng.gauss(0, 0.03)
        out.append(
            f"(TaskRunner pid=12345) step:{s} - global_seqlen/min:{100000 + rng.randrange(9999)} - actor/entropy:{0.5 + rng.gauss(0, 0.02):.4f} - "
            f"actor/kl_loss:{0.001 * s / n + abs(rng.gauss(0, 1e-4)):.6f} - actor/pg_loss:{NAN if bad else rng.gauss(0, 0.02):.6f} - "
            f"actor/pg_clipfrac:{abs(rng.gauss(0, 0.001)):.6f} - actor/grad_norm:{NAN if bad else 0.3 * math.exp(rng.gauss(0, 0.3)):.6f} - "
            f"actor/lr:1e-06 - critic/score/mean:{reward:.4f} - critic/rewards/mean:{reward:.4f} - critic/advantages/mean:{rng.gauss(0, 0.02):.4f} - "
            f"response_length/mean:{300 + rng.gauss(0, 10):.3f} - timing_s/gen:{40 + rng.gauss(0, 3):.3f} - timing_s/step:{88 + rng.gauss(0, 5):.3f} - perf/max_memory_allocated_gb:61.2"
        )
        out.append(
            f"(TaskRunner pid=12345) Training Progress:  {s * 100 // 435}%|█         | {s}/435 [02:0{s % 10}<1:00:00, 88.1s/it]"
        )
    return out


@case()
def verl_healthy(d: Path) -> Path:
    return save(d / "verl.log", _verl(200, 42))


@case("HD101", 120, 1, others=("HD201",))
def verl_nan(d: Path) -> Path:
    return save(d / "verl.log", _verl(160, 43, 120))


def _timm(loss: list[list[float]], rates: list[float]) -> list[str]:
    out = [
        "Training with a single process on 1 device (cuda:0).",
        "Model resnet50 created, param count:25557032",
        "AMP not enabled. Training in torch.float32.",
        "Scheduled epochs: 30. LR stepped per epoch.",
    ]
    for e, values in enumerate(loss):
        total = 0.0
        for i, v in enumerate(values):
            total += v
            if i % 50 == 0:
                out.append(
                    f"Train: {e} [{i:4d}/{len(values)} ({100 * i / len(values):3.0f}%)]  Loss: {v:#.3g} ({total / (i + 1):#.3g})  "
                    f"Time: 0.312s, 410.26/s  (0.330s, 387.88/s)  LR: {rates[e]:.3e}  Data: 0.010 (0.021)"
                )
        out.append(
            "Test: [  48/48]  Time: 0.102 (0.171)  Loss:   1.842 ( 2.133)  Acc@1:  61.321 ( 54.114)  Acc@5:  83.255 ( 78.114)"
        )
        out.append("Current checkpoints:\n ('./output/train/checkpoint-0.pth.tar', 54.114)\n")
    return out


@case()
def timm_healthy(d: Path) -> Path:
    flat = falling(12 * 300, 6.9, 2.5, 44, 0.05)
    return save(
        d / "timm.log",
        _timm([flat[i * 300 : i * 300 + 300] for i in range(12)], cosine(12, 0.1, 2)),
    )


@case("HD101", None, 1)
def timm_nan(d: Path) -> Path:
    flat = lost_from(falling(12 * 300, 6.9, 2.5, 45, 0.05), 2010)
    return save(
        d / "timm.log",
        _timm([flat[i * 300 : i * 300 + 300] for i in range(12)], cosine(12, 0.1, 2)),
    )


def _mmengine(n: int, seed: int, dead: bool = False, spike: bool = False) -> list[str]:
    cls, box = falling(n, 1.1, 0.3, seed, 0.08), falling(n, 0.6, 0.25, seed + 1, 0.08)
    if dead:
        box = [0.0] * n
    if spike:
        cls = once(cls, n * 2 // 3, 40.0)
    out = [
        "2025/03/11 10:00:00 - mmengine - INFO - ",
        "System environment:",
        "    GPU 0: NVIDIA A100",
    ]
    norm = norms(n, seed, 5, 3)
    for i in range(n):
        e, j = divmod(i, 20)
        out.append(
            f"03/11 10:{i % 60:02d}:00 - mmengine - INFO - Epoch(train) [{e + 1}][{(j + 1) * 50:4d}/1000]  base_lr: 2.0000e-02 lr: 2.0000e-02  "
            f"eta: 1 day, 2:13:44  time: 0.4312  data_time: 0.0121  memory: 7542  grad_norm: {norm[i]:.4f}  loss: {cls[i] + box[i]:.4f}  "
            f"loss_cls: {cls[i]:.4f}  acc: 93.2129  loss_bbox: {box[i]:.4f}"
        )
    return out


@case()
def mmengine_healthy(d: Path) -> Path:
    return save(d / "20250311_100000.log", _mmengine(240, 46))


@case("HD106", None, 100000)
def mmengine_dead_box_loss(d: Path) -> Path:
    return save(d / "20250311_100000.log", _mmengine(240, 48, dead=True))


@case("HD103", 8000, 50, exit=0)
def mmengine_one_spike(d: Path) -> Path:
    return save(d / "20250311_100000.log", _mmengine(240, 50, spike=True))


# Files of loggers: Lightning's metrics.csv, MLflow, TensorBoard, Ultralytics


def _lightning(
    loss: list[float], k: int, per_epoch: int, rate: list[float] | None = None
) -> list[str]:
    out = ["epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_acc,val_loss"]
    for i in range(len(loss)):
        e = i // per_epoch
        if (i + 1) % k == 0:
            if rate:
                out.append(f",{rate[i]},{i},,,,")
            out.append(f"{e},,{i},,{loss[i]},,")
        if (i + 1) % per_epoch == 0:
            mean = sum(loss[i + 1 - per_epoch : i + 1]) / per_epoch
            out.append(f"{e},,{i},,,0.81,{mean * 1.03}")
            out.append(f"{e},,{i},{mean},,,")
    return out


@case()
def lightning_csv_healthy(d: Path) -> Path:
    lines = _lightning(falling(2000, 2.3, 0.4, 52, 0.12), 50, 200, cosine(2000, 1e-3))
    return save(d / "lightning_logs/version_0/metrics.csv", lines)


@case("HD101", 1249, 50)
def lightning_csv_nan(d: Path) -> Path:
    loss = lost_from(falling(2000, 2.3, 0.4, 53, 0.12), 1220)
    return save(d / "lightning_logs/version_0/metrics.csv", _lightning(loss, 50, 200))


@case("HD405", 100, 60)
def lightning_csv_schedule_collapsed(d: Path) -> Path:
    rate = [*cosine(100, 1e-3), *([0.0] * 1900)]
    loss = [*falling(100, 2.3, 1.7, 54, 0.05), *around(1900, 1.8, 54, 0.05)]
    return save(d / "lightning_logs/version_0/metrics.csv", _lightning(loss, 10, 200, rate))


def _mlflow(d: Path, columns: dict[str, list[tuple[int, float]]]) -> Path:
    for name, points in columns.items():
        save(d / "metrics" / name, [f"{1741687200000 + 300 * s} {v} {s}" for s, v in points])
    for name, value in {"lr": "0.001", "max_grad_norm": "1.0", "optimizer": "AdamW"}.items():
        save(d / "params" / name, [value])
    save(
        d / "meta.yaml",
        ["artifact_uri: mlflow-artifacts:/0/abc/artifacts", "run_id: abc", "status: 3"],
    )
    return d


@case()
def mlflow_healthy(d: Path) -> Path:
    loss = falling(500, 1.4, 0.5, 55, 0.05)
    return _mlflow(
        d / "mlruns/0/abc",
        {
            "train_loss": list(enumerate(loss)),
            "val_loss": [(s, loss[s] * 1.1) for s in range(0, 500, 50)],
        },
    )


@case("HD101", 333, 1)
def mlflow_nan(d: Path) -> Path:
    loss = lost_from(falling(500, 1.4, 0.5, 56, 0.05), 334)
    return _mlflow(d / "mlruns/0/abc", {"train_loss": list(enumerate(loss))})


@case()
def tensorboard_healthy(d: Path) -> Path:
    loss, rate = falling(3000, 2.3, 0.3, 57, 0.1), cosine(3000, 1e-3, 100)
    at = range(0, 3000, 25)
    return tfevents(
        d / "runs/Mar11_host/events.out.tfevents.1741687200.host.1.0",
        {
            "Loss/train": [(s, loss[s]) for s in at],
            "Loss/test": [(s, loss[s] * 1.1) for s in range(0, 3000, 250)],
            "lr": [(s, rate[s]) for s in at],
        },
    )


@case("HD202", 1000, 250, others=("HD201",))
def tensorboard_norm_explodes(d: Path) -> Path:
    norm = [v * 1.01 ** max(0, i - 1000) for i, v in enumerate(norms(2500, 58, 0.7))]
    norm = lost_from(norm, 2100)
    loss = lost_from(falling(2500, 2.3, 0.9, 58, 0.05), 2101)
    at = range(0, 2500, 10)
    return tfevents(
        d / "events.out.tfevents.1741687200.host.1.0",
        {"train/loss": [(s, loss[s]) for s in at], "train/grad_norm": [(s, norm[s]) for s in at]},
    )


@case("HD115", None, 400)
def tensorboard_oscillation(d: Path) -> Path:
    rng = random.Random(59)
    loss = [(3.4 if i % 2 else 1.2) * math.exp(rng.gauss(0, 0.03)) for i in range(400)]
    loss[:10] = [2.3 - 0.1 * i for i in range(10)]
    return tfevents(d / "events.out.tfevents.1741687200.host.1.0", {"loss": list(enumerate(loss))})


def _ultralytics(n: int, seed: int, nan_at: int | None = None) -> list[str]:
    names = [
        "train/box_loss",
        "train/cls_loss",
        "train/dfl_loss",
        "metrics/precision(B)",
        "metrics/recall(B)",
        "metrics/mAP50(B)",
        "metrics/mAP50-95(B)",
        "val/box_loss",
        "val/cls_loss",
        "val/dfl_loss",
        "lr/pg0",
        "lr/pg1",
        "lr/pg2",
    ]
    out = ["epoch,time," + ",".join(names)]
    parts = [
        falling(n, 1.6, 0.8, seed, 0.01),
        falling(n, 2.9, 0.6, seed + 1, 0.01),
        falling(n, 1.5, 1.0, seed + 2, 0.01),
    ]
    rate = linear(n, 0.01, 3)
    for e in range(n):
        t = [p[e] if nan_at is None or e + 1 < nan_at else NAN for p in parts]
        v = [x * 1.1 for x in t]
        m = [0.6, 0.5, 0.55, 0.35] if nan_at is None or e + 1 < nan_at else [0, 0, 0, 0]
        cells = [*t, *m, *v, rate[e], rate[e], rate[e]]
        out.append(f"{e + 1},{e * 31.2:.2f}," + ",".join(f"{c:.5g}" for c in cells))
    return out


@case()
def ultralytics_healthy(d: Path) -> Path:
    return save(d / "runs/detect/train/results.csv", _ultralytics(60, 60))


@case("HD101", 31, 1)
def ultralytics_nan(d: Path) -> Path:
    return save(d / "runs/detect/train/results.csv", _ultralytics(60, 63, 31))


# jsonl in several spellings


@case()
def jsonl_healthy_wandb_like(d: Path) -> Path:
    loss, norm = falling(800, 4.1, 1.9, 66), norms(800, 66)
    rate = cosine(800, 3e-4, 50)
    return save(
        d / "wandb-history.jsonl",
        [
            json.dumps(
                {
                    "train/loss": loss[i],
                    "train/grad_norm": norm[i],
                    "train/learning_rate": rate[i],
                    "_step": i,
                    "_runtime": 1.3 * i,
                    "_timestamp": 1741687200 + i,
                }
            )
            for i in range(800)
        ],
    )


@case("HD101", 401, 1)
def jsonl_nan_token(d: Path) -> Path:
    loss = lost_from(falling(600, 4.1, 1.9, 67), 401)
    return save(
        d / "metrics.jsonl",
        [json.dumps({"iter": i + 1, "train_loss": v, "lr": 1e-3}) for i, v in enumerate(loss)],
    )


@case("HD101", 401, 1)
def jsonl_nan_as_null_and_string(d: Path) -> Path:
    loss = falling(600, 4.1, 1.9, 68)
    rows = [
        {"global_step": i + 1, "loss": v if i < 400 else "NaN", "lr": 1e-3}
        for i, v in enumerate(loss)
    ]
    return save(d / "log.json", [json.dumps(r) for r in rows])


@case("HD801", None, 800)
def jsonl_host_memory_climbs(d: Path) -> Path:
    loss = falling(800, 4.1, 1.9, 69)
    return save(
        d / "metrics.jsonl",
        [
            json.dumps({"step": i, "loss": v, "rss_mb": 4000 + 35 * i + (i % 3)})
            for i, v in enumerate(loss)
        ],
    )


@case("HD406", 500, 1)
def jsonl_rate_jump(d: Path) -> Path:
    loss = falling(900, 4.1, 1.9, 70)
    rate = cosine(1000, 3e-4, 50)
    rows = [{"step": i, "loss": loss[i], "lr": rate[i] if i < 500 else 3e-3} for i in range(900)]
    return save(d / "metrics.jsonl", [json.dumps(r) for r in rows])


@case()
def jsonl_healthy_warm_restarts(d: Path) -> Path:
    loss = falling(900, 4.1, 1.9, 71)
    cycle = cosine(150, 3e-4)
    rows = [
        {"step": i, "loss": loss[i] * (1 + 0.05 * (i % 150 < 20)), "lr": cycle[i % 150]}
        for i in range(900)
    ]
    return save(d / "metrics.jsonl", [json.dumps(r) for r in rows])


@case()
def jsonl_healthy_gan(d: Path) -> Path:
    rng = random.Random(72)
    rows = []
    phase = 0.0
    for i in range(600):
        phase += 0.05
        rows.append(
            {
                "step": i * 10,
                "loss_G": 2.0 + 0.8 * math.sin(phase) + rng.gauss(0, 0.5),
                "loss_D": 0.7 - 0.2 * math.sin(phase) + rng.gauss(0, 0.15),
                "D_real": 0.7,
                "D_fake": 0.3,
            }
        )
    return save(d / "gan.jsonl", [json.dumps(r) for r in rows])


@case()
def jsonl_healthy_rl_ppo(d: Path) -> Path:
    rng = random.Random(73)
    rows = [
        {
            "update": i,
            "policy_loss": rng.gauss(0, 0.02),
            "value_loss": abs(rng.gauss(0.4, 0.2)),
            "entropy": 1.4 - 0.8 * i / 500,
            "approx_kl": abs(rng.gauss(0.01, 0.004)),
            "clip_fraction": abs(rng.gauss(0.1, 0.03)),
            "ep_rew_mean": -200 + 400 * i / 500 + rng.gauss(0, 20),
        }
        for i in range(500)
    ]
    return save(d / "progress.jsonl", [json.dumps(r) for r in rows])


@case()
def jsonl_healthy_curriculum(d: Path) -> Path:
    loss: list[float] = []
    for part, start in enumerate((3.0, 2.6, 2.9)):
        loss += falling(400, start, 1.1 + 0.2 * part, 74 + part, 0.05)
    return save(
        d / "metrics.jsonl",
        [json.dumps({"step": i, "stage": i // 400, "loss": v}) for i, v in enumerate(loss)],
    )


# Hand-written prints


@case("HD202", None, 2, others=("HD106", "HD107", "HD207"))
def print_cpe_total_grad_norm(d: Path) -> Path:
    loss = falling(20, 6.5, 6.3, 77, 0.004)
    lines = ["🚀 Starting training on cuda"]
    lines += [
        f"Epoch {i + 1} | Total Loss: {v:.2f} | CPE Loss: 0.00 | Total Grad Norm: {4970000.0 * 1.9**i:.1f}"
        for i, v in enumerate(loss)
    ]
    return save(d / "train.log", lines)


@case("HD106", None, 30)
def print_dead_component(d: Path) -> Path:
    loss = falling(30, 6.5, 2.0, 78, 0.01, 0.3)
    return save(
        d / "train.log",
        [
            f"Epoch {i + 1}/30 | Total Loss: {v:.4f} | Recon Loss: {v:.4f} | Cycle Loss: 0.0000"
            for i, v in enumerate(loss)
        ],
    )


@case("HD106", None, 30, exit=0)
def print_switched_off_kl(d: Path) -> Path:
    loss = falling(30, 6.5, 2.0, 78, 0.01, 0.3)
    return save(
        d / "train.log",
        [
            f"Epoch {i + 1}/30 | Total Loss: {v:.4f} | Recon Loss: {v:.4f} | KL Loss: 0.0000"
            for i, v in enumerate(loss)
        ],
    )


@case("HD107", None, 200)
def print_dominant_component(d: Path) -> Path:
    rec, reg = falling(200, 0.9, 0.4, 79, 0.02), around(200, 950.0, 79, 0.01)
    return save(
        d / "train.log",
        [
            f"[step {i:05d}] loss={a + b:.4f} (recon={a:.4f}, reg={b:.4f}) lr=1.00e-03"
            for i, (a, b) in enumerate(zip(rec, reg, strict=True))
        ],
    )


@case()
def print_epochs_only(d: Path) -> Path:
    loss = falling(25, 0.69, 0.2, 80, 0.03, 0.2)
    return save(
        d / "output.txt",
        [
            f"Epoch {i + 1}: train loss = {v:.3f}, val loss = {v * 1.2:.3f}, acc = {70 + i:.1f}%"
            for i, v in enumerate(loss)
        ],
    )


@case("HD101", 12, 1)
def print_epochs_nan(d: Path) -> Path:
    loss = lost_from(falling(25, 0.69, 0.2, 81, 0.03, 0.2), 12)
    return save(
        d / "output.txt",
        [f"Epoch [{i + 1}/25], Loss: {v:.4f}, Accuracy: {61.2:.2f}%" for i, v in enumerate(loss)],
    )


@case("HD101", None, 1)
def print_epoch_and_batch_nan(d: Path) -> Path:
    loss = lost_from(falling(5000, 2.3, 0.2, 82, 0.2), 3210)
    lines = []
    for i in range(0, 5000, 100):
        lines.append(
            f"Train Epoch: {i // 1000 + 1} [{i % 1000 * 64}/64000 ({i % 1000 / 10:.0f}%)]\tLoss: {loss[i]:.6f}"
        )
        if i % 1000 == 900:
            lines.append(f"\nTest set: Average loss: {0.05:.4f}, Accuracy: 9820/10000 (98%)\n")
    return save(d / "mnist.log", lines)


@case()
def print_mnist_healthy(d: Path) -> Path:
    loss = falling(10000, 2.3, 0.05, 83, 0.7, 0.01)
    lines = []
    for i in range(0, 10000, 100):
        lines.append(
            f"Train Epoch: {i // 1000 + 1} [{i % 1000 * 64}/64000 ({i % 1000 / 10:.0f}%)]\tLoss: {loss[i]:.6f}"
        )
        if i % 1000 == 900:
            lines.append(f"\nTest set: Average loss: {0.05:.4f}, Accuracy: 9820/10000 (98%)\n")
    return save(d / "mnist.log", lines)


@case()
def print_pipes_and_emojis(d: Path) -> Path:
    loss = falling(300, 3.1, 1.1, 84, 0.05)
    lines = ["=" * 60, "🔥 Model: 12.3M params | device: cuda:0 | seed: 42", "=" * 60]
    lines += [
        f"📈 step {i:>6} | loss {v:.4f} | ppl {math.exp(v):.2f} | lr 3.00e-04 | ⏱️ 12.1 it/s"
        for i, v in enumerate(loss)
    ]
    return save(d / "run.log", [*lines, "✅ Done! best loss 1.08"])


@case("HD103", 200, 1, exit=0)
def print_spike_batch_one(d: Path) -> Path:
    loss = bump(falling(400, 3.1, 1.1, 85, 0.06), 201, 25, 2)
    return save(
        d / "run.log",
        [f"{clock(i)} INFO trainer.py:88 - iter={i} loss={v:.5f}" for i, v in enumerate(loss)],
    )


@case()
def print_noisy_batch_one(d: Path) -> Path:
    loss = falling(1500, 3.0, 1.0, 86, 0.7, 0.1)
    return save(d / "run.log", [f"it: {i}, loss: {v:.4f}" for i, v in enumerate(loss)])


@case()
def print_short_run(d: Path) -> Path:
    return save(
        d / "run.log",
        [f"step {i} loss {v:.3f}" for i, v in enumerate((2.31, 2.28, 2.30, 2.22, 2.19))],
    )


@case()
def print_table_healthy(d: Path) -> Path:
    loss = falling(40, 1.3, 0.5, 87, 0.03, 0.2)
    lines = [
        "| epoch | train_loss | valid_loss | accuracy | time  |",
        "|-------|------------|------------|----------|-------|",
    ]
    lines += [
        f"| {i:5d} | {v:10.6f} | {v * 1.1:10.6f} | {0.5 + i / 100:8.4f} | 00:12 |"
        for i, v in enumerate(loss)
    ]
    return save(d / "fastai.txt", lines)


@case("HD101", 23, 1)
def print_table_nan(d: Path) -> Path:
    loss = lost_from(falling(40, 1.3, 0.5, 88, 0.03, 0.2), 24)
    lines = ["epoch     train_loss  valid_loss  accuracy  time    "]
    lines += [
        f"{i:<9} {v:<11.6f} {v * 1.1:<11.6f} {0.5 + i / 100:<9.4f} 00:12   "
        for i, v in enumerate(loss)
    ]
    return save(d / "fastai.txt", lines)


@case("HD104", 150, 25)
def print_divergence_equals(d: Path) -> Path:
    loss = rising(falling(400, 2.3, 1.0, 89, 0.04), 150, 0.03, 9.0)
    return save(d / "run.log", [f"[{i}/400] train_loss={v:.4f} lr=0.1" for i, v in enumerate(loss)])


@case("HD104", 150, 25)
def print_divergence_exponential(d: Path) -> Path:
    loss = [v * (1.05 ** max(0, i - 150)) for i, v in enumerate(falling(400, 2.3, 1.0, 90, 0.04))]
    return save(d / "run.log", [f"step: {i}\tloss: {v:.4e}" for i, v in enumerate(loss)])


@case("HD105", None, 60)
def print_stalled_ln10_epochs(d: Path) -> Path:
    loss = around(60, math.log(10), 91, 0.0005)
    return save(
        d / "run.log",
        [
            f"Epoch {i + 1}/60 - loss: {v:.4f} - accuracy: 0.1002 - val_loss: {2.3028:.4f} - val_accuracy: 0.1000"
            for i, v in enumerate(loss)
        ],
    )


@case("HD115", None, 60)
def print_oscillation_epochs(d: Path) -> Path:
    rng = random.Random(92)
    loss = [(8.4 if i % 2 else 1.1) * math.exp(rng.gauss(0, 0.05)) for i in range(60)]
    return save(d / "run.log", [f"epoch {i}, loss: {v:.3f}" for i, v in enumerate(loss)])


@case("HD101", 180, 1, exit=0, others=("HD101",))
def print_nan_once_recovered(d: Path) -> Path:
    loss = once(falling(400, 2.3, 1.0, 93, 0.04), 181, NAN)
    return save(
        d / "run.log",
        [f"step={i} loss={v:.4f} grad_norm={1.1 + 0.1 * (i % 5):.3f}" for i, v in enumerate(loss)],
    )


@case("HD101", 77, 1)
def print_inf_loss(d: Path) -> Path:
    loss = lost_from(falling(120, 2.3, 1.0, 94, 0.04), 78, INF)
    return save(
        d / "run.log",
        [f"Iteration {i:4d}: Loss = {v:8.4f} (best = 1.000)" for i, v in enumerate(loss)],
    )


@case("HD201", 90, 1)
def print_nan_gradient_loss_finite(d: Path) -> Path:
    loss, norm = falling(200, 2.3, 1.6, 95, 0.04), lost_from(norms(200, 95), 91)
    loss[90:] = around(110, 1.9, 95, 0.02)
    return save(
        d / "run.log",
        [
            f"step {i} | loss: {v:.4f} | gnorm: {g:.3f} | lr: 1.0e-3"
            for i, (v, g) in enumerate(zip(loss, norm, strict=True))
        ],
    )


@case("HD207", 120, 1, exit=0, others=("HD103",))
def print_gradient_spike(d: Path) -> Path:
    norm = once(norms(300, 96, 1.0, 2), 121, 400.0)
    loss = falling(300, 2.3, 1.0, 96, 0.03)
    return save(
        d / "run.log",
        [
            f"step {i} loss {v:.4f} grad norm {g:.3f}"
            for i, (v, g) in enumerate(zip(loss, norm, strict=True))
        ],
    )


@case("HD208", None, 400)
def print_clip_in_banner(d: Path) -> Path:
    loss, norm = falling(400, 2.3, 1.3, 97, 0.03), norms(400, 97, 55, 1.2)
    lines = ["Namespace(lr=0.0003, batch_size=32, max_grad_norm=1.0, epochs=10, seed=0)"]
    lines += [
        f"step {i} loss {v:.4f} grad_norm {g:.3f}"
        for i, (v, g) in enumerate(zip(loss, norm, strict=True))
    ]
    return save(d / "run.log", lines)


@case("HD405", 50, 10)
def print_schedule_collapsed(d: Path) -> Path:
    rate = [*cosine(50, 1e-3), *([0.0] * 950)]
    loss = [*falling(50, 2.3, 1.9, 98, 0.02), *around(950, 1.95, 98, 0.02)]
    return save(
        d / "run.log", [f"step {i:4d}  loss {loss[i]:.4f}  lr {rate[i]:.2e}" for i in range(1000)]
    )


@case("HD313", 300, 40)
def print_scaler_to_zero(d: Path) -> Path:
    scale = [65536.0 * 0.5 ** max(0, i - 299) for i in range(500)]
    loss = [*falling(300, 2.3, 1.2, 99, 0.03), *around(200, 1.4, 99, 0.03)]
    return save(
        d / "run.log", [f"step {i} loss {loss[i]:.4f} scale {scale[i]:.6g}" for i in range(500)]
    )


@case()
def print_scaler_healthy(d: Path) -> Path:
    scale = []
    now = 65536.0
    for i in range(6000):
        if i in (0, 3, 2500, 4700):
            now /= 2
        elif i % 2000 == 1999:
            now *= 2
        scale.append(now)
    loss = falling(6000, 2.3, 1.2, 100, 0.03)
    return save(
        d / "run.log",
        [f"step {i} loss {loss[i]:.4f} scale {scale[i]:.0f}" for i in range(0, 6000, 10)],
    )


@case("HD804", None, 400)
def print_step_time_grows(d: Path) -> Path:
    loss = falling(400, 2.3, 1.2, 101, 0.03)
    return save(
        d / "run.log",
        [f"step {i} loss {v:.4f} step_time {0.2 + 0.004 * i:.3f}s" for i, v in enumerate(loss)],
    )


@case("HD802", None, 400)
def print_gpu_memory_climbs(d: Path) -> Path:
    loss = falling(400, 2.3, 1.2, 102, 0.03)
    return save(
        d / "run.log",
        [f"step {i} loss {v:.4f} gpu_mem {4.0 + 0.05 * i:.2f}GB" for i, v in enumerate(loss)],
    )


@case()
def print_comma_decimals_and_percent(d: Path) -> Path:
    loss = falling(200, 4.6, 0.9, 103, 0.03)
    return save(
        d / "run.log",
        [
            f"[ {i / 2:5.1f}% ] Step {i * 1000:,} / 200,000 ; Loss: {v:.4f} ; tokens: {i * 32768:,}"
            for i, v in enumerate(loss)
        ],
    )


@case()
def print_keras_healthy(d: Path) -> Path:
    loss = falling(20, 0.6, 0.1, 104, 0.02, 0.2)
    lines = []
    for i, v in enumerate(loss):
        lines.append(f"Epoch {i + 1}/20")
        bars = [
            f"{b * 100}/1875 [{'=' * b:.<30}] - ETA: 3s - loss: {v * 1.05:.4f} - accuracy: 0.9{i:02d}"
            for b in (5, 10, 15)
        ]
        lines.append(
            "\b" * 0
            + "\r".join(
                [
                    *bars,
                    f"1875/1875 [{'=' * 30}] - 4s 2ms/step - loss: {v:.4f} - accuracy: 0.9{i:02d} - val_loss: {v * 1.2:.4f} - val_accuracy: 0.96",
                ]
            )
        )
    return save(d / "keras.log", lines)


@case("HD101", 300, 1)
def print_tqdm_postfix_nan(d: Path) -> Path:
    loss = lost_from(falling(500, 2.3, 1.0, 105, 0.03), 301)
    bars = [
        f"Epoch 0:  {i // 5}%|███       | {i}/500 [00:12<00:30, 16.1it/s, loss={v:.3f}, lr=0.001]"
        for i, v in enumerate(loss)
    ]
    return save(d / "tqdm.log", bars, end="\r")


@case("HD101", 40, 1)
def csv_plain_nan(d: Path) -> Path:
    loss = lost_from(falling(80, 1.0, 0.3, 106, 0.03), 41)
    return save(
        d / "history.csv",
        ["epoch,loss,val_loss,lr", *[f"{i},{v},{v * 1.1},0.001" for i, v in enumerate(loss)]],
    )


@case("HD101", 41, 1)
def csv_plain_nan_empty_cells_semicolons(d: Path) -> Path:
    loss = falling(80, 1.0, 0.3, 107, 0.03)
    return save(
        d / "history.csv",
        [
            "Epoch;Train Loss;Val Loss",
            *[f"{i + 1};{v if i < 40 else 'nan'};{v * 1.1}" for i, v in enumerate(loss)],
        ],
    )


@case()
def csv_healthy_overfit(d: Path) -> Path:
    loss = falling(80, 1.0, 0.02, 108, 0.05)
    rows = [
        f"{i},{v:.5f},{0.5 + 0.004 * i + 0.3 * math.exp(-i / 10):.5f}" for i, v in enumerate(loss)
    ]
    return save(d / "log.csv", ["epoch,train_loss,val_loss", *rows])


@case()
def print_detection_multiline(d: Path) -> Path:
    lines = []
    box, cls = falling(100, 1.5, 0.5, 109, 0.05), falling(100, 0.8, 0.2, 110, 0.05)
    for i in range(100):
        lines += [
            f"--- Iteration {i * 20} ---",
            f"  box_loss: {box[i]:.4f}",
            f"  cls_loss: {cls[i]:.4f}",
            f"  loss: {box[i] + cls[i]:.4f}",
            f"  lr: {1e-3:.6f}",
            "",
        ]
    return save(d / "run.log", lines)


@case()
def hf_healthy_resumed_console(d: Path) -> Path:
    rows = hf_rows(falling(600, 2.2, 1.0, 111), norms(600, 111), linear(600, 5e-5, 30), 10)
    one, two = hf_console(rows[:33], 600), hf_console(rows[30:], 600)
    return save(
        d / "train.log", [*one[:-1], "KeyboardInterrupt", "Resuming from checkpoint-300", *two]
    )


@case("HD101", 5, 3, others=("HD104",))
def print_nan_early_no_steps(d: Path) -> Path:
    return save(
        d / "run.log", [*(f"loss: {v:.4f}" for v in (2.3, 2.5, 3.9, 11.2)), *(["loss: nan"] * 30)]
    )


@case()
def print_contrastive_negative_elbo(d: Path) -> Path:
    rng = random.Random(112)
    rows = [
        f"epoch {i:03d} | nll {-1.2 - 2.5 * (1 - math.exp(-i / 20)) + rng.gauss(0, 0.03):.4f} | time 3.1s"
        for i in range(100)
    ]
    return save(d / "flow.log", rows)
