"""More outside logs: other trainers, odd encodings, several ranks or runs in one file."""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import json
import math
import random
from pathlib import Path

from support.external_log_simulators import (
    NAN,
    around,
    bump,
    cosine,
    every,
    falling,
    linear,
    lost_from,
    norms,
)
from support.external_log_writers import clock, hf_console, hf_rows, hf_state, save
from support.external_logs import case


@case("HD101", 120, 1)
def powershell_utf16_nan(d: Path) -> Path:
    loss = lost_from(falling(200, 2.3, 1.0, 201), 121)
    text = "\r\n".join(f"step {i} loss {v:.4f}" for i, v in enumerate(loss))
    d.mkdir(exist_ok=True)
    (d / "log.txt").write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    return d / "log.txt"


@case()
def folds_in_one_file(d: Path) -> Path:
    lines = []
    for fold in range(5):
        lines.append(f"===== Fold {fold + 1}/5 =====")
        for i, v in enumerate(falling(30, 1.1, 0.2, 210 + fold, 0.03, 0.1)):
            lines.append(
                f"Epoch {i + 1}/30 train_loss: {v:.4f} val_loss: {v * 1.2:.4f} lr: {1e-3 * (1 - i / 30):.6f}"
            )
    return save(d / "cv.log", lines)


@case()
def four_ranks_healthy(d: Path) -> Path:
    ranks = [falling(200, 4.0, 1.5, 220 + r, 0.08) for r in range(4)]
    return save(
        d / "torchrun.log",
        [
            f"[rank{r}]: step {i} loss {ranks[r][i]:.4f} lr 1e-4"
            for i in range(200)
            for r in range(4)
        ],
    )


@case("HD101", 90, 1)
def four_ranks_one_nan(d: Path) -> Path:
    ranks = [falling(200, 4.0, 1.5, 230 + r, 0.08) for r in range(4)]
    ranks[2] = lost_from(ranks[2], 91)
    return save(
        d / "torchrun.log",
        [
            f"[rank{r}]: step {i} loss {ranks[r][i]:.4f} lr 1e-4"
            for i in range(200)
            for r in range(4)
        ],
    )


@case()
def reduce_on_plateau(d: Path) -> Path:
    loss = falling(90, 1.2, 0.3, 240, 0.02)
    rate = [1e-3 if i < 40 else 1e-4 if i < 60 else 1e-5 for i in range(90)]
    lines = []
    for i, v in enumerate(loss):
        lines.append(f"Epoch {i:3d}: train {v:.4f} val {v * 1.1:.4f} lr {rate[i]:.1e}")
        if i in (39, 59):
            lines.append(f"Epoch {i:05d}: reducing learning rate of group 0 to {rate[i + 1]:.4e}.")
    return save(d / "run.log", lines)


@case()
def one_cycle(d: Path) -> Path:
    up = cosine(300, 1.0)[::-1]
    rate = [4e-5 + 1e-3 * v for v in up] + cosine(700, 1e-3, 0, 4e-9)
    loss = falling(1000, 2.3, 0.6, 241, 0.05)
    return save(
        d / "run.log", [f"it {i}: loss={loss[i]:.4f}, lr={rate[i]:.3e}" for i in range(1000)]
    )


@case()
def rate_zero_at_first_and_last(d: Path) -> Path:
    rate = [0.0, *linear(998, 5e-5, 100), 0.0]
    rows = hf_rows(falling(1000, 2.0, 0.8, 242), norms(1000, 242), rate, 1)
    return hf_state(d / "trainer_state.json", rows, 1, 1000)


@case()
def epochs_make_steps_in_the_loss(d: Path) -> Path:
    rng = random.Random(243)
    loss = [(1.5, 0.95, 0.5, 0.25)[i // 250] * math.exp(rng.gauss(0, 0.08)) for i in range(1000)]
    rows = hf_rows(loss, norms(1000, 243), linear(1000, 2e-5, 30), 5, per_epoch=250)
    return hf_state(d / "trainer_state.json", rows, 5, 1000)


@case()
def diffusion_flat_and_noisy(d: Path) -> Path:
    loss = falling(40000, 0.16, 0.105, 244, 0.35, 0.05)
    bars = [
        f"steps:  {i * 100 // 40000}%|█    | {i}/40000 [01:02<9:11:01,  1.21it/s, lr=1e-5, step_loss={loss[i]:.3g}]"
        for i in range(0, 40000, 50)
    ]
    return save(d / "kohya.log", bars, end="\r")


@case()
def dpo_healthy(d: Path) -> Path:
    rows = hf_rows(
        falling(500, 0.6931, 0.45, 245, 0.02, 0.5),
        norms(500, 245, 8, 1.2),
        linear(500, 5e-7, 50),
        10,
    )
    for i, row in enumerate(rows):
        row |= {
            "rewards/chosen": 0.01 * i,
            "rewards/rejected": -0.02 * i,
            "rewards/accuracies": 0.5 + 0.005 * i,
            "rewards/margins": 0.03 * i,
            "logps/chosen": -221.3,
            "logits/chosen": -2.1,
        }
    return hf_state(d / "trainer_state.json", rows, 10, 500)


@case()
def grpo_healthy_loss_near_zero(d: Path) -> Path:
    rng = random.Random(246)
    rows = []
    for s in range(1, 301):
        same = rng.random() < 0.08
        rows.append(
            {
                "loss": 0.0 if same or s < 20 else round(rng.gauss(0.0, 0.01), 4),
                "grad_norm": 0.0 if same else 0.25 * math.exp(rng.gauss(0, 0.3)),
                "learning_rate": 1e-6,
                "num_tokens": 1000.0 * s,
                "completions/mean_length": 200.0,
                "rewards/format/mean": 0.1 + 0.002 * s,
                "reward": 0.2 + 0.003 * s,
                "reward_std": 0.0 if same else 0.3,
                "frac_reward_zero_std": float(same),
                "kl": 0.0002 * s,
                "clip_ratio/low_mean": 0.0,
                "clip_ratio/high_mean": 0.0,
                "epoch": s / 300,
                "step": s,
            }
        )
    return hf_state(d / "trainer_state.json", rows, 1, 300)


@case()
def moe_aux_losses(d: Path) -> Path:
    loss = falling(600, 9.0, 3.0, 247, 0.02)
    return save(
        d / "moe.log",
        [
            f"step {i:>5} | lm_loss {v:.4f} | load_balancing_loss {1.0003 + 0.002 * math.sin(i):.4f} | z_loss {0.0011:.4f} | loss {v + 0.0113:.4f}"
            for i, v in enumerate(loss)
        ],
    )


@case()
def gan_console(d: Path) -> Path:
    rng = random.Random(248)
    lines = [
        f"[Epoch {e}/20] [Batch {b}/938] [D loss: {abs(rng.gauss(0.55, 0.12)):.6f}] [G loss: {abs(rng.gauss(1.3, 0.4)):.6f}]"
        for e in range(20)
        for b in range(0, 938, 100)
    ]
    return save(d / "gan.log", lines)


@case()
def stable_baselines_table(d: Path) -> Path:
    rng = random.Random(249)
    lines = ["Using cuda device", "Wrapping the env in a DummyVecEnv."]
    for i in range(1, 80):
        cells = {
            "time/": "",
            "   fps": 1100,
            "   iterations": i,
            "   time_elapsed": 2 * i,
            "   total_timesteps": 2048 * i,
            "train/": "",
            "   approx_kl": f"{abs(rng.gauss(0.01, 0.003)):.7f}",
            "   clip_fraction": 0.11,
            "   clip_range": 0.2,
            "   entropy_loss": f"{-1.4 + i / 200:.3f}",
            "   explained_variance": f"{min(0.95, i / 60):.3f}",
            "   learning_rate": 0.0003,
            "   loss": f"{abs(rng.gauss(12, 6)):.3g}",
            "   n_updates": 10 * i,
            "   policy_gradient_loss": f"{rng.gauss(-0.01, 0.003):.5f}",
            "   value_loss": f"{abs(rng.gauss(30, 9)):.3g}",
        }
        lines += ["-" * 44, *[f"| {k:<22} | {v!s:<13} |" for k, v in cells.items()], "-" * 44]
    return save(d / "sb3.log", lines)


@case("HD101", 150, 10)
def maxtext_nan(d: Path) -> Path:
    loss = lost_from(falling(300, 10.8, 4.0, 250, 0.01), 151)
    return save(
        d / "maxtext.log",
        [
            f"completed step: {i}, seconds: 1.512, TFLOP/s/device: 201.113, Tokens/s/device: 4011.221, total_weights: 65536, loss: {v:.3f}"
            for i, v in enumerate(loss)
        ],
    )


@case("HD102", 210, 10, others=("HD101", "HD201"))
def llama_factory_zero_loss(d: Path) -> Path:
    loss = falling(400, 2.0, 1.0, 251)
    rows = [
        {
            "current_steps": s,
            "total_steps": 400,
            "loss": round(loss[s - 1], 4) if s <= 200 else 0.0,
            "grad_norm": 1.2 if s <= 200 else NAN,
            "lr": 5e-5,
            "epoch": s / 100,
            "percentage": s / 4,
            "elapsed_time": "0:10:00",
            "remaining_time": "1:00:00",
        }
        for s in every(400, 10)
    ]
    return save(d / "trainer_log.jsonl", [json.dumps(r) for r in rows])


@case()
def torchtune_healthy(d: Path) -> Path:
    loss, rate = falling(500, 1.6, 0.9, 252, 0.1), cosine(500, 2e-5, 50)
    return save(
        d / "log_1741687200.txt",
        [
            f"Step {i + 1} | loss:{loss[i]} lr:{rate[i]} tokens_per_second_per_gpu:{2131.3 + i % 7} peak_memory_active:21.3 peak_memory_alloc:21.3 peak_memory_reserved:22.1 grad_norm:{1.1 + i % 5 / 10}"
            for i in range(500)
        ],
    )


@case("HD101", 61, 1)
def litgpt_nan(d: Path) -> Path:
    loss = lost_from(falling(100, 1.9, 1.0, 253), 61)
    return save(
        d / "litgpt.log",
        [
            f"Epoch 1 | iter {4 * s} step {s} | loss train: {loss[s - 1]:.3f}, val: n/a | iter time: 412.31 ms (step)"
            for s in range(1, 101)
        ],
    )


@case("HD104", 300, 40)
def composer_divergence(d: Path) -> Path:
    loss = falling(800, 8.0, 3.0, 254, 0.02)
    loss = [
        v if i < 300 else min(v + 0.03 * (i - 300), 11.0 + 0.1 * math.sin(i))
        for i, v in enumerate(loss)
    ]
    lines = []
    for s in every(800, 10):
        lines += [
            f"[batch={s}/800]:",
            f"\t Train time/batch: {s - 1}",
            f"\t Train time/token: {s * 4096}",
            f"\t Train loss/train/total: {loss[s - 1]:.4f}",
            f"\t Train metrics/train/LanguageCrossEntropy: {loss[s - 1]:.4f}",
            "\t Train lr-DecoupledAdamW/group0: 0.0006",
            "\t Train throughput/batches_per_sec: 0.3121",
        ]
    return save(d / "composer.log", lines)


def _nnunet(loss: list[float]) -> list[str]:
    out = [
        "#######################################################################",
        "Please cite the following paper when using nnU-Net:",
        "",
    ]
    for e, v in enumerate(loss):
        at = f"{clock(e * 100)}.{e:06d}:"
        out += [
            f"{at} Epoch {e}",
            f"{at} Current learning rate: {0.01 * (1 - e / 1000) ** 0.9:.5f}",
            f"{at} train_loss {v:.4f}",
            f"{at} val_loss {v * 0.97 if math.isfinite(v) else NAN:.4f}",
            f"{at} Pseudo dice [0.8123, 0.7113]",
            f"{at} Epoch time: 121.51 s",
            f"{at} ",
        ]
    return out


@case()
def nnunet_healthy_negative(d: Path) -> Path:
    rng = random.Random(255)
    return save(
        d / "training_log_2025_3_11.txt",
        _nnunet([0.1 - 0.9 * (1 - math.exp(-e / 25)) + rng.gauss(0, 0.01) for e in range(150)]),
    )


@case("HD101", 80, 1)
def nnunet_nan(d: Path) -> Path:
    rng = random.Random(256)
    loss = [0.1 - 0.9 * (1 - math.exp(-e / 25)) + rng.gauss(0, 0.01) for e in range(150)]
    return save(d / "training_log_2025_3_11.txt", _nnunet(lost_from(loss, 81)))


@case("HD313", 600, 150, others=("HD414",))
def neox_scale_collapse(d: Path) -> Path:
    loss, rate = falling(1200, 10.9, 3.1, 257, 0.01), cosine(1200, 6e-4, 100)
    lines = []
    for s in every(1200, 10):
        scale = 65536.0 if s < 600 else max(65536.0 / 2 ** ((s - 600) // 10), 1.0)
        skip = 0 if s < 600 else 3 if scale > 1 else 10
        lines.append(
            f" samples/sec: 121.3 | iteration {s:8d}/  320000 | elapsed time per iteration (ms): 4211.3 | learning rate: {rate[s - 1]:.3E} | approx flops per GPU: 101.1TFLOPS | lm_loss: {loss[s - 1]:.6E} | loss scale: {scale:.1f} | number of skipped iterations: {skip:3d} | number of nan iterations:   0 |"
        )
    return save(d / "neox.log", lines)


@case()
def jax_absl_healthy(d: Path) -> Path:
    loss, norm = falling(1000, 6.9, 2.0, 258, 0.04), norms(1000, 258)
    return save(
        d / "jax.log",
        [
            f"I0311 10:{s // 60 % 60:02d}:{s % 60:02d}.123456 140213 logging_writer.py:48] [{s}] grad_norm={norm[s - 1]:.4f}, learning_rate=0.0010, train_loss={loss[s - 1]:.6f}, steps_per_sec=4.1"
            for s in every(1000, 10)
        ],
    )


@case("HD101", 520, 10, others=("HD201",))
def jax_absl_nan(d: Path) -> Path:
    loss, norm = (
        lost_from(falling(1000, 6.9, 2.0, 259, 0.04), 515),
        lost_from(norms(1000, 259), 515),
    )
    return save(
        d / "jax.log",
        [
            f"I0311 10:{s // 60 % 60:02d}:{s % 60:02d}.123456 140213 logging_writer.py:48] [{s}] grad_norm={norm[s - 1]:.4f}, learning_rate=0.0010, train_loss={loss[s - 1]:.6f}, steps_per_sec=4.1"
            for s in every(1000, 10)
        ],
    )


@case()
def nan_only_in_other_metrics(d: Path) -> Path:
    loss = falling(60, 1.1, 0.4, 260, 0.02, 0.2)
    return save(
        d / "run.log",
        [
            f"Epoch {i + 1:02d} | train_loss {v:.4f} | val_loss {v * 1.1:.4f} | f1 {'nan' if i < 5 else 0.5} | auc nan"
            for i, v in enumerate(loss)
        ],
    )


@case("HD101", 33, 1)
def thousands_then_nan(d: Path) -> Path:
    loss = lost_from([12000 * v for v in falling(60, 1.1, 0.4, 261, 0.02, 0.2)], 33)
    return save(d / "run.log", [f"Epoch: {i + 1} -> Loss: {v:,.2f}" for i, v in enumerate(loss)])


@case("HD101", 33, 1)
def traceback_at_the_end(d: Path) -> Path:
    loss = lost_from(falling(40, 1.1, 0.4, 262, 0.02, 0.2), 33)
    lines = [f"epoch={i + 1:03d} loss={v:.4f} acc={0.5:.2%}" for i, v in enumerate(loss)]
    lines += [
        "Traceback (most recent call last):",
        '  File "train.py", line 88, in <module>',
        "    sample = dist.sample()",
        "ValueError: Expected parameter logits to satisfy the constraint IndependentConstraint(Real(), 1), but found invalid values: tensor([[nan, nan]])",
    ]
    return save(d / "run.log", lines)


@case()
def grad_norm_above_clip_mildly(d: Path) -> Path:
    loss, norm = falling(500, 3.3, 1.9, 263), norms(500, 263, 2.5, 3)
    lines = ["config: {'lr': 0.0003, 'grad_clip': 1.0, 'batch': 64}"]
    lines += [
        f"step {i}: loss {loss[i]:.4f}, grad_norm {norm[i]:.3f}, lr 3.0e-04" for i in range(500)
    ]
    return save(d / "run.log", lines)


@case()
def host_memory_with_plateau(d: Path) -> Path:
    loss = falling(600, 2.1, 0.9, 264)
    return save(
        d / "m.jsonl",
        [
            json.dumps(
                {
                    "step": i,
                    "loss": v,
                    "cpu_mem_gb": 4 + 6 * (1 - math.exp(-i / 40)),
                    "gpu_mem_gb": 11.2,
                }
            )
            for i, v in enumerate(loss)
        ],
    )


@case()
def slow_steps_at_checkpoints(d: Path) -> Path:
    loss = falling(600, 2.1, 0.9, 265)
    return save(
        d / "run.log",
        [
            f"step {i} | loss {v:.4f} | dt {9.1 if i % 100 == 0 else 0.41 + 0.02 * math.sin(i):.2f}s"
            for i, v in enumerate(loss)
        ],
    )


@case("HD103", 400, 10, exit=0, others=("HD207",))
def spike_small_smooth_run(d: Path) -> Path:
    loss = bump(falling(800, 4.0, 2.6, 266, 0.004), 400, 0.9, 25)
    return save(d / "run.log", [f"step {i} loss {v:.4f}" for i, v in enumerate(loss)])


@case("HD104", 2500, 300)
def slow_divergence(d: Path) -> Path:
    loss = falling(6000, 9.0, 3.0, 267, 0.01)
    loss = [v + max(0, i - 2500) * 0.0015 for i, v in enumerate(loss)]
    return save(d / "run.log", [f"iter {i} | train loss {loss[i]:.4f}" for i in range(0, 6000, 20)])


@case()
def validation_rises_train_falls(d: Path) -> Path:
    lines = []
    for i, v in enumerate(falling(50, 1.0, 0.02, 268, 0.03, 0.05)):
        lines.append(
            f"Epoch {i + 1}/50\n  train loss: {v:.4f}\n  valid loss: {0.6 + 0.02 * i:.4f}\n  best: {0.6:.4f}"
        )
    return save(d / "run.log", lines)


@case()
def two_runs_appended(d: Path) -> Path:
    lines = []
    for r in range(2):
        lines.append(f"Starting run {r} at 2025-03-11 10:00:00")
        lines += [
            f"step {i}/300, loss: {v:.4f}, lr: {cosine(300, 1e-3, 30)[i]:.2e}"
            for i, v in enumerate(falling(300, 3.0, 1.0, 269 + r))
        ]
    return save(d / "run.log", lines)


@case("HD201", 210, 10, others=("HD102",))
def hf_console_axolotl_nan_grad(d: Path) -> Path:
    norm = lost_from(norms(400, 271), 205)
    rows = hf_rows(
        [*falling(204, 1.4, 1.0, 271), *around(196, 1.2, 271)], norm, cosine(400, 2e-4, 10), 10
    )
    lines = [
        f"[2025-03-11 10:00:00,{i:03d}] [INFO] [axolotl.utils.data.load_tokenized_prepared_datasets:{i}] [PID:7] [RANK:0] loading"
        for i in range(5)
    ]
    return save(d / "axolotl.log", lines + hf_console(rows, 400))


def _lines(form: str, loss: list[float], norm: list[float]) -> list[str]:
    return [form.format(i=i, v=v, g=g) for i, (v, g) in enumerate(zip(loss, norm, strict=True))]


def _spelled(name: str, form: str) -> None:
    """One print of a NaN that came and went: whatever follows it, it must be seen."""

    def write(d: Path) -> Path:
        loss, norm = falling(150, 2.3, 1.1, 300, 0.03), norms(150, 300, 1.0, 2)
        loss[80] = NAN
        return save(d / "train.log", _lines(form, loss, norm))

    write.__name__ = f"spelled_{name}"
    case("HD101", 80, 1, exit=0)(write)


_spelled("equals", "step={i} loss={v:.4f} grad_norm={g:.3f}")
_spelled("plain", "step {i} loss {v:.4f} grad {g:.3f}")
_spelled("padded", "step {i:6d}  loss {v:9.4f} grad_norm {g:9.3f}")
_spelled("colons", "iter: {i} loss: {v:.4f} iter_time: 0.{i:03d}")
_spelled(
    "tensor", "iteration {i}, loss = tensor({v:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)"
)
_spelled("brackets", "[{i:>5}] [loss {v:.4f}] [gnorm {g:.2f}]")
_spelled("upper", "STEP {i} | LOSS={v:.4f} | GRAD_NORM={g:.3f}")
_spelled("quotes", "{{'step': {i}, 'loss': {v:.4f}, 'gnorm': {g:.3f}}}")
_spelled(
    "logger",
    "2025-03-11 10:00:00,123 - train - INFO - Step {i}/150 - Train loss: {v:.4f} - step time: 0.1s",
)
_spelled("arrow", "step {i} => loss => {v:.4f} (lr 1e-3)")
_spelled("then_step", "loss={v:.4f} step={i} lr=0.001")


@case("HD101", 60, 1)
def run_log_in_a_folder(d: Path) -> Path:
    loss = lost_from(falling(100, 2.3, 1.1, 301), 61)
    save(d / "run.log", [f"step {i} loss {v:.4f}" for i, v in enumerate(loss)])
    save(d / "config.txt", ["lr: 0.001", "loss: mse"])
    return d


@case("HD101", 120, 10)
def torchtitan_two_ranks_one_nan(d: Path) -> Path:
    loss = falling(200, 8.0, 4.0, 302, 0.01)
    lines = []
    for s in every(200, 10):
        for r in range(2):
            v = NAN if r == 1 and s >= 120 else loss[s - 1]
            lines.append(
                f"[rank{r}]:[titan] {clock(s)},001 - root - INFO - step: {s:2}  loss: {v:7.4f}  memory: 40.10GiB(50.7%)  tps: 7,001  mfu: 41.7%"
            )
    return save(d / "t.log", lines)


@case()
def bce_and_dice_parts(d: Path) -> Path:
    bce, dice = falling(120, 0.6, 0.1, 303, 0.03), falling(120, 0.7, 0.2, 304, 0.03)
    return save(
        d / "seg.log",
        [
            f"epoch {i} loss {b + c:.4f} bce {b:.4f} dice {c:.4f} lr 0.001"
            for i, (b, c) in enumerate(zip(bce, dice, strict=True))
        ],
    )


@case("HD107", None, 200, others=())
def unnamed_part_swamps_the_other(d: Path) -> Path:
    fit, pen = around(200, 0.7, 305, 0.02), around(200, 420.0, 305, 0.01)
    return save(
        d / "m.jsonl",
        [
            json.dumps({"step": i, "loss": a + b, "fit": a, "pen": b})
            for i, (a, b) in enumerate(zip(fit, pen, strict=True))
        ],
    )


@case()
def vae_with_annealed_kl(d: Path) -> Path:
    rec = falling(400, 550.0, 95.0, 306, 0.01, 0.03)
    kl = [25.0 * min(1.0, i / 200) for i in range(400)]
    return save(
        d / "vae.log",
        [
            f"epoch {i} | loss {a + b:.3f} | recon {a:.3f} | kl {b:.3f}"
            for i, (a, b) in enumerate(zip(rec, kl, strict=True))
        ],
    )


@case()
def sequence_length_grows(d: Path) -> Path:
    loss = [v * (1 + 0.15 * (i // 200)) for i, v in enumerate(falling(800, 9.0, 3.0, 307, 0.02))]
    return save(
        d / "run.log",
        [f"step {i} seq_len {128 * 2 ** (i // 200)} loss {v:.4f}" for i, v in enumerate(loss)],
    )


@case()
def two_stages_second_with_a_higher_rate(d: Path) -> Path:
    one, two = cosine(300, 1e-4, 30), cosine(300, 2e-4, 60)
    loss = falling(600, 3.0, 1.2, 308, 0.04)
    return save(
        d / "m.jsonl",
        [json.dumps({"step": i, "loss": loss[i], "lr": (one + two)[i]}) for i in range(600)],
    )


@case()
def heavy_tails_in_twelve_rows(d: Path) -> Path:
    rng = random.Random(301)
    high = (12.1, 17.9, 12.4, 15.2, 11.0, 18.3, 12.9, 11.8, 12.2, 16.7, 9.1, 14.9)
    return save(
        d / "run.log",
        [f"step {16 * i + 16} loss {v * rng.uniform(0.99, 1.01):.4f}" for i, v in enumerate(high)],
    )


@case("HD202", 500, 80)
def norm_explodes_while_the_loss_falls_then_nan(d: Path) -> Path:
    norm = [v * 1.02 ** max(0, i - 500) for i, v in enumerate(norms(1000, 310, 0.8))]
    loss = falling(1000, 4.0, 1.0, 310, 0.02)
    return save(
        d / "run.log",
        [
            f"step {i} loss {v:.4f} grad_norm {g:.3f}"
            for i, (v, g) in enumerate(zip(lost_from(loss, 900), lost_from(norm, 900), strict=True))
        ],
    )


@case("HD405", 60, 10)
def schedule_collapsed_with_a_floor(d: Path) -> Path:
    rate = [*cosine(60, 3e-4, 5, 1e-9), *([1e-9] * 1140)]
    loss = [*falling(60, 4.0, 3.0, 311, 0.02), *around(1140, 3.1, 311, 0.02)]
    return save(
        d / "m.jsonl",
        [
            json.dumps({"iteration": i, "train/loss": loss[i], "train/lr": rate[i]})
            for i in range(1200)
        ],
    )


@case("HD414", 300, 40)
def skipped_counted_in_jsonl(d: Path) -> Path:
    rng = random.Random(312)
    loss = falling(900, 4.0, 2.0, 312, 0.02)
    return save(
        d / "m.jsonl",
        [
            json.dumps(
                {
                    "step": i,
                    "loss": loss[i],
                    "skipped_iterations": int(i >= 300 and rng.random() < 0.4),
                    "loss_scale": 65536.0,
                }
            )
            for i in range(900)
        ],
    )
