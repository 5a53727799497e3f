"""The fifth blind set of logs: the healthy runs, many of which look ill.

As in the earlier sets, the expectation of every case was written before its first diagnosis, without
reading the readers or the checks. `fifth_blind_logs_ill` and `fifth_blind_logs_ends` hold the rest.
"""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from support import fifth_blind_dialects as tool
from support.external_log_simulators import around, bump, cosine, falling, linear, norms
from support.external_log_writers import clock, hf_console, hf_rows, hf_state, save
from support.external_log_writers import tfevents as tensorboard
from support.second_blind_logs import BlindLog, csv, jsonl, plain
from support.third_blind_logs import text

FIFTH: list[BlindLog] = []


def case(
    *verdicts: str,
    codes: Sequence[str] = (),
    runs: dict[str, str] | None = None,
    worst: str = "",
    says: str = "",
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Register a log of the fifth set with the verdicts that are right."""

    def add(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        FIFTH.append(
            BlindLog(write.__name__, write, verdicts, tuple(codes), runs or {}, worst, says)
        )
        return write

    return add


@case("healthy")
def llmc_gpt2(d: Path) -> Path:
    return save(
        d / "main.log", tool.llmc(falling(900, 11.0, 3.4, 801, 0.015), norms(900, 801, 0.8))
    )


@case("healthy")
def maxtext_steps(d: Path) -> Path:
    return save(d / "maxtext.log", tool.maxtext(falling(500, 11.8, 3.1, 802, 0.015)))


@case("healthy")
def composer_console(d: Path) -> Path:
    memory = [38.1 if i < 5 else 41.2 for i in range(400)]
    return save(d / "mpt.log", tool.composer(falling(400, 11.2, 3.3, 803, 0.015), memory))


@case("healthy")
def litgpt_finetune_tiny_gain(d: Path) -> Path:
    return save(d / "litgpt.log", tool.litgpt(falling(600, 1.31, 1.17, 804, 0.06)))


@case("healthy")
def icefall_transducer(d: Path) -> Path:
    return save(d / "log-train.txt", tool.icefall(falling(320, 7.1, 0.31, 805, 0.06)))


@case("healthy")
def coqui_tts(d: Path) -> Path:
    return text(
        d / "trainer_0_log.txt",
        tool.coqui(falling(240, 38.0, 21.0, 806, 0.03), norms(240, 806, 40)),
    )


@case("healthy")
def flair_tagger(d: Path) -> Path:
    return save(d / "training.log", tool.flair(falling(200, 2.9, 0.21, 807, 0.04)))


@case("healthy")
def opennmt_console(d: Path) -> Path:
    return save(d / "onmt.log", tool.opennmt(falling(300, 9.4, 1.9, 808, 0.02)))


@case("healthy")
def marian_with_dropping_norm(d: Path) -> Path:
    return save(
        d / "train.log", tool.marian(falling(240, 9.2, 2.6, 809, 0.02), norms(240, 809, 0.6))
    )


@case("healthy")
def tf1_estimator(d: Path) -> Path:
    return save(d / "tf.log", tool.estimator(falling(300, 2.4, 0.31, 810, 0.06)))


@case("healthy")
def paddleocr_text(d: Path) -> Path:
    return save(d / "train.log", tool.paddleocr(falling(400, 42.0, 0.9, 811, 0.06)))


@case("healthy")
def mindspore_lenet(d: Path) -> Path:
    return save(d / "ms.log", tool.mindspore(falling(500, 2.31, 0.08, 812, 0.15)))


@case("healthy")
def caffe_solver(d: Path) -> Path:
    return save(d / "caffe.INFO", tool.caffe(falling(300, 6.91, 1.8, 813, 0.05)))


@case("healthy")
def darknet_yolov4(d: Path) -> Path:
    return save(d / "yolo.log", tool.darknet(falling(600, 1400.0, 2.1, 814, 0.06)))


@case("healthy")
def yolox_no_aug_at_the_end(d: Path) -> Path:
    """The L1 term is switched on and the total steps up a little, then falls."""
    loss = falling(500, 16.0, 4.6, 815, 0.04)
    return save(
        d / "train_log.txt", tool.yolox([v + (0.5 if i > 430 else 0) for i, v in enumerate(loss)])
    )


@case("healthy")
def detr_log_txt(d: Path) -> Path:
    train = falling(300, 36.0, 6.1, 816, 0.01)
    return save(d / "log.txt", tool.detr_json(train, [v * 1.08 + 0.4 for v in train]))


@case("healthy")
def mae_pretraining_is_slow(d: Path) -> Path:
    return save(d / "mae.log", tool.metric_logger(falling(800, 0.98, 0.41, 817, 0.01)))


@case("healthy")
def swin_console(d: Path) -> Path:
    return save(
        d / "log_rank0.txt", tool.swin(falling(600, 6.93, 3.0, 818, 0.04), norms(600, 818, 2.2))
    )


@case("healthy")
def imagenet_example(d: Path) -> Path:
    return save(d / "resnet.log", tool.imagenet(falling(500, 6.95, 1.5, 819, 0.04)))


@case("healthy")
def mnist_example(d: Path) -> Path:
    return save(d / "mnist.txt", tool.mnist(falling(94 * 5, 2.3, 0.04, 820, 0.4)))


@case("healthy")
def mlx_lora(d: Path) -> Path:
    return save(d / "mlx.log", tool.mlx(falling(100, 2.6, 1.1, 821, 0.05)))


@case("healthy", "unknown")
def rsl_rl_value_loss_grows_with_reward(d: Path) -> Path:
    rng = random.Random(822)
    reward = [30 * (1 - math.exp(-i / 80)) + rng.gauss(0, 2) for i in range(300)]
    return save(
        d / "rsl.log", tool.rsl_rl([0.02 + 0.004 * abs(r) * rng.random() for r in reward], reward)
    )


@case("healthy")
def nnunet_dice_loss_below_zero(d: Path) -> Path:
    rng = random.Random(823)
    train = [-0.86 + 0.9 * math.exp(-e / 30) + rng.gauss(0, 0.012) for e in range(250)]
    return save(
        d / "training_log.txt", tool.nnunet(train, [v * 0.93 + rng.gauss(0, 0.02) for v in train])
    )


@case("healthy")
def deepmd_lcurve(d: Path) -> Path:
    return save(d / "lcurve.out", tool.lcurve(falling(400, 21.0, 0.9, 824, 0.12)))


@case("healthy")
def modded_nanogpt(d: Path) -> Path:
    return save(d / "5f1e.txt", tool.modded(falling(1750, 10.8, 3.28, 825, 0.012)))


@case("healthy")
def kohya_average_loss_hardly_moves(d: Path) -> Path:
    """A LoRA of a diffusion model: the running mean stays near 0.1 from start to end."""
    rng = random.Random(826)
    mean, shown = 0.13, []
    for i in range(1200):
        mean += (0.105 - 0.01 * i / 1200 + rng.gauss(0, 0.05) - mean) / 60
        shown.append(max(mean, 0.01))
    return text(d / "kohya.log", tool.kohya(shown) + "\nmodel saved.\n")


@case("healthy")
def neox_three_skips_at_the_start(d: Path) -> Path:
    lines = tool.neox(falling(300, 11.0, 2.7, 827, 0.012), norms(300, 827, 0.7))
    lines[0] = lines[0].replace("skipped iterations:   0", "skipped iterations:   3")
    return save(d / "neox.out", lines)


@case("healthy")
def nanotron_with_units(d: Path) -> Path:
    return save(
        d / "nanotron.log", tool.nanotron(falling(600, 11.9, 3.2, 828, 0.012), norms(600, 828, 0.4))
    )


@case("healthy")
def speechbrain_train_log(d: Path) -> Path:
    train = falling(40, 4.1, 0.41, 829, 0.02, 0.2)
    return save(d / "train_log.txt", tool.speechbrain(train, [v * 1.1 for v in train]))


@case("healthy")
def wenet_conformer(d: Path) -> Path:
    return save(d / "train.log", tool.wenet(falling(400, 91.0, 8.2, 830, 0.12)))


@case("healthy")
def skorch_table(d: Path) -> Path:
    train = falling(50, 0.69, 0.41, 831, 0.01, 0.3)
    return save(d / "skorch.txt", tool.skorch(train, [v * 1.06 for v in train]))


@case("healthy", "unknown")
def stylegan_never_settles(d: Path) -> Path:
    rng = random.Random(832)
    gen = [1.4 + 0.4 * math.sin(i / 31) + rng.gauss(0, 0.15) for i in range(250)]
    return save(
        d / "stats.jsonl",
        tool.stylegan_stats(
            gen, [1.1 - 0.2 * math.sin(i / 27) + rng.gauss(0, 0.1) for i in range(250)]
        ),
    )


@case("healthy")
def allennlp_epoch_files(d: Path) -> Path:
    train = falling(24, 1.4, 0.2, 833, 0.01, 0.25)
    return tool.allennlp(d / "model", train, [v + 0.1 for v in train])


@case("healthy")
def dvclive_tsv(d: Path) -> Path:
    loss = falling(200, 2.3, 0.4, 834, 0.04)
    for name, values in (("loss", loss), ("acc", [1 - v / 2.6 for v in loss])):
        save(
            d / f"dvclive/plots/metrics/train/{name}.tsv",
            [f"step\t{name}", *(f"{i}\t{v!r}" for i, v in enumerate(values))],
        )
    (d / "dvclive/metrics.json").write_text(
        json.dumps({"train": {"loss": loss[-1], "acc": 0.8}, "step": 199})
    )
    return d / "dvclive"


@case("healthy")
def sacred_metrics_json(d: Path) -> Path:
    loss = falling(300, 2.3, 0.4, 835, 0.04)
    d.mkdir(exist_ok=True)
    (d / "metrics.json").write_text(
        json.dumps(
            {
                name: {
                    "steps": list(range(0, 3000, 10)),
                    "timestamps": [clock(i).replace(" ", "T") + ".112311" for i in range(300)],
                    "values": values,
                }
                for name, values in {
                    "train.loss": loss,
                    "train.acc": [1 - v / 2.6 for v in loss],
                }.items()
            },
            indent=2,
        )
    )
    return d / "metrics.json"


@case("healthy")
def tensorboard_downloaded_csv(d: Path) -> Path:
    rows = [
        f"{1741687200.1 + i},{i * 20},{v}" for i, v in enumerate(falling(400, 2.3, 0.5, 836, 0.04))
    ]
    return save(d / "run-version_0-tag-train_loss.csv", ["Wall time,Step,Value", *rows])


@case("healthy")
def ray_tune_result_json(d: Path) -> Path:
    rows = [
        json.dumps(
            {
                "loss": v,
                "lr": 1e-3,
                "time_this_iter_s": 3.1,
                "done": i == 119,
                "training_iteration": i + 1,
                "trial_id": "8fa3_00000",
                "date": "2025-03-11_10-00-00",
                "timestamp": 1741687200 + i,
                "time_total_s": 3.1 * i,
                "pid": 4711,
                "hostname": "n1",
                "config": {"lr": 1e-3, "batch_size": 64},
            }
        )
        for i, v in enumerate(falling(120, 2.3, 0.5, 837, 0.03))
    ]
    return save(d / "train_8fa3/result.json", rows)


@case("healthy", "unknown")
def sb3_monitor(d: Path) -> Path:
    rng = random.Random(838)
    rows = [
        f"{min(500, 20 + i + rng.gauss(0, 40)):.6f},{min(500, 20 + i)},{i * 0.81:.6f}"
        for i in range(500)
    ]
    return save(
        d / "0.monitor.csv", ['#{"t_start": 1741687200.1, "env_id": "CartPole-v1"}', "r,l,t", *rows]
    )


@case("healthy")
def xgboost_rounds(d: Path) -> Path:
    return save(
        d / "xgb.log",
        [
            f"[{i}]\ttrain-rmse:{v:.5f}\tvalid-rmse:{v * 1.06:.5f}"
            for i, v in enumerate(falling(200, 3.1, 0.6, 839, 0.003))
        ],
    )


@case("healthy")
def catboost_rounds(d: Path) -> Path:
    return save(
        d / "cat.log",
        [
            f"{i}:\tlearn: {v:.7f}\ttest: {v * 1.05:.7f}\tbest: {v * 1.05:.7f} ({i})\ttotal: {12 * i}ms\tremaining: {2 - i / 200:.2f}s"
            for i, v in enumerate(falling(200, 0.69, 0.31, 840, 0.001))
        ],
    )


@case("healthy")
def pyg_cora(d: Path) -> Path:
    loss = falling(200, 1.95, 0.2, 841, 0.06)
    return save(
        d / "gcn.log",
        [
            f"Epoch: {e + 1:03d}, Loss: {v:.4f}, Train: {min(1, 0.2 + e / 50):.4f}, Val: {min(0.79, 0.2 + e / 60):.4f}, Test: {min(0.81, 0.2 + e / 60):.4f}"
            for e, v in enumerate(loss)
        ],
    )


@case("healthy")
def splatting_bar_and_iterations(d: Path) -> Path:
    out = "Optimizing output/8f3a\nOutput folder: ./output/8f3a [11/03 10:00:00]\nReading camera 251/251\n"
    for i, v in enumerate(falling(1000, 0.31, 0.031, 842, 0.12)):
        share = 100 * (i + 1) // 1000
        out += f"\rTraining progress: {share:3d}%|{'█' * (share // 10):<10}| {(i + 1) * 30}/30000 [{i // 6:02d}:{i % 60:02d}<10:12, 41.12it/s, Loss={v:.7f}, Depth Loss=0.0000000]"
    out += "\n[ITER 7000] Evaluating train: L1 0.0211 PSNR 28.12 [11/03 10:05:00]\n\nTraining complete. [11/03 10:30:00]\n"
    return text(d / "gs.log", out)


@case("healthy")
def journald_prefix(d: Path) -> Path:
    return save(
        d / "journal.txt",
        [
            f"Mar 11 10:{i // 60 % 60:02d}:{i % 60:02d} gpu07 python[4711]: step {i} loss={v:.4f} lr=3.00e-04"
            for i, v in enumerate(falling(500, 5.1, 2.1, 843, 0.04))
        ],
    )


@case("healthy")
def kubectl_prefix_and_timestamps(d: Path) -> Path:
    return save(
        d / "pod.log",
        [
            f"[pod/train-0/pytorch] 2025-03-11T10:{i // 60 % 60:02d}:{i % 60:02d}.{i * 7919 % 10**9:09d}Z epoch 0 step {i}/900 loss {v:.4f} grad_norm {1 + i % 4 / 9:.3f}"
            for i, v in enumerate(falling(500, 5.1, 2.1, 844, 0.04))
        ],
    )


@case("healthy")
def compose_two_services(d: Path) -> Path:
    lines = []
    for i, v in enumerate(falling(400, 2.3, 0.5, 845, 0.04)):
        lines.append(f"\x1b[36mtrainer-1      |\x1b[0m step {i} loss {v:.4f}")
        if i % 9 == 0:
            lines.append(
                '\x1b[33mtensorboard-1  |\x1b[0m 10.0.0.1 - - [11/Mar/2025 10:00:00] "GET /data/runs HTTP/1.1" 200 -'
            )
    return save(d / "compose.log", lines)


@case("healthy")
def notebook_training_table(d: Path) -> Path:
    """Unsloth in Colab, pasted from the page."""
    head = [
        "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1",
        "   \\\\   /|    Num examples = 51,760 | Num Epochs = 1 | Total steps = 120",
        "",
        " [120/120 15:12, Epoch 0/1]",
        "Step\tTraining Loss",
    ]
    return save(
        d / "colab.txt",
        [*head, *(f"{i + 1}\t{v:.6f}" for i, v in enumerate(falling(120, 1.9, 0.9, 846, 0.12)))],
    )


@case("healthy")
def loss_scale_drops_and_interval_changes(d: Path) -> Path:
    """The log interval changes from 1 to 10 steps at step 200: the curve gets smoother."""
    loss, lines = falling(2000, 8.2, 2.4, 847, 0.09), []
    for i in range(2000):
        if i < 200 or i % 10 == 9:
            shown = loss[i] if i < 200 else sum(loss[i - 9 : i + 1]) / 10
            lines.append(
                f"step={i} loss={shown:.4f} loss_scale={65536 if i < 700 else 32768} lr=1.0e-04"
            )
    return save(d / "train.log", lines)


@case("healthy")
def resumed_twice_with_repeated_steps(d: Path) -> Path:
    loss = falling(900, 4.1, 1.4, 848, 0.04)
    again = falling(900, 4.1, 1.4, 849, 0.04)
    lines = plain(loss[:430], 1)
    lines += [
        "Resuming from checkpoint step_400.pt",
        *[f"step {i + 1} | loss {again[i]:.4f}" for i in range(400, 640)],
    ]
    lines += [
        "Resuming from checkpoint step_600.pt",
        *[f"step {i + 1} | loss {loss[i]:.4f}" for i in range(600, 900)],
        "done",
    ]
    return save(d / "train.log", lines)


@case("healthy")
def cyclic_rate_and_cyclic_loss(d: Path) -> Path:
    rate = [1e-4 + 9e-4 * (1 - abs(i % 200 - 100) / 100) for i in range(1200)]
    base = falling(1200, 2.3, 0.5, 850, 0.03)
    return csv(
        d / "clr.csv",
        {
            "loss": [v * (1 + 0.22 * (r / 1e-3)) for v, r in zip(base, rate, strict=True)],
            "lr": rate,
        },
        2,
    )


@case("healthy")
def curriculum_stairs(d: Path) -> Path:
    loss = falling(1200, 3.1, 1.1, 851, 0.02)
    for at in (300, 600, 900):
        loss = bump(loss, at, 0.6, 60)
    return jsonl(
        d / "m.jsonl", {"loss": loss, "seq_len": [512 * 2 ** (i // 300) for i in range(1200)]}, 3
    )


@case("healthy")
def one_cycle_finetuning_improves_two_percent(d: Path) -> Path:
    loss = [2.104 - 0.045 * i / 400 + random.Random(i).gauss(0, 0.02) for i in range(400)]
    return hf_state(
        d / "checkpoint-4000/trainer_state.json",
        hf_rows(
            [v for v in loss for _ in range(10)], norms(4000, 852, 0.3), linear(4000, 1e-5, 100), 10
        ),
        10,
        4000,
    )


@case("healthy")
def tensorboard_validation_noise(d: Path) -> Path:
    loss = falling(600, 1.9, 0.4, 853, 0.04)
    rng = random.Random(853)
    return tensorboard(
        d / "events.out.tfevents.1741687200.n1.1.0",
        {
            "train_loss_step": [(s * 50, v) for s, v in enumerate(loss)],
            "val_loss": [
                (s * 1000, 0.6 + 0.8 * math.exp(-s / 6) + abs(rng.gauss(0, 0.07)))
                for s in range(30)
            ],
            "epoch": [(s * 50, s // 20) for s in range(600)],
        },
    )


@case("healthy")
def one_spike_recovers_within_rows(d: Path) -> Path:
    loss = bump(falling(600, 11.0, 3.0, 854, 0.012), 380, 2.5, 6)
    return save(d / "main.log", tool.llmc(loss, norms(600, 854, 0.7)))


@case("healthy")
def memory_warms_up_then_stays(d: Path) -> Path:
    rng = random.Random(855)
    memory = [min(18.2 + 0.09 * i, 27.4) + rng.gauss(0, 0.05) for i in range(500)]
    return save(d / "mpt.log", tool.composer(falling(500, 3.1, 1.9, 855, 0.03), memory))


@case("healthy", "unknown")
def accuracy_only(d: Path) -> Path:
    return save(
        d / "acc.txt",
        [
            f"epoch {e}: accuracy {0.9 - 0.6 * math.exp(-e / 9) + e % 3 / 300:.4f}"
            for e in range(60)
        ],
    )


@case("healthy", "unknown")
def perplexity_only(d: Path) -> Path:
    return csv(
        d / "ppl.csv",
        {"ppl": [18 + 400 * math.exp(-i / 30) for i in range(200)], "lr": cosine(200, 1e-3)},
    )


@case("healthy")
def hf_console_early_stopped_and_best_loaded(d: Path) -> Path:
    rows = hf_rows(
        falling(600, 1.1, 0.32, 856, 0.05),
        norms(600, 856),
        linear(2000, 2e-5, 50),
        10,
        per_epoch=100,
    )
    lines = hf_console(rows, 2000)
    lines.insert(-1, "Loading best model from out/checkpoint-500 (score: 0.4121).")
    return save(d / "run.log", lines)


@case("healthy")
def kl_and_policy_of_grpo_console(d: Path) -> Path:
    rng = random.Random(857)
    lines = [
        str(
            {
                "loss": round(0.0002 * i / 300 + rng.gauss(0, 0.0004), 4),
                "grad_norm": round(0.3 + abs(rng.gauss(0, 0.1)), 4),
                "learning_rate": 1e-6,
                "num_tokens": 41231.0 * (i + 1),
                "completions/mean_length": 212.0 + i / 3,
                "rewards/accuracy_reward/mean": round(
                    0.3 + 0.4 * (1 - math.exp(-i / 90)) + rng.gauss(0, 0.06), 4
                ),
                "reward": round(0.4 + 0.4 * (1 - math.exp(-i / 90)), 4),
                "reward_std": 0.31,
                "kl": round(0.0004 * i, 4),
                "clip_ratio": 0.0,
                "epoch": round(i / 300, 2),
            }
        )
        for i in range(300)
    ]
    return save(d / "grpo.log", lines)


@case("healthy")
def keras2_progress_lines(d: Path) -> Path:
    out = ""
    for e, v in enumerate(falling(25, 1.6, 0.35, 858, 0.01, 0.3)):
        out += f"Epoch {e + 1}/25\n"
        for k in (1, 400, 782):
            bar = "=" * (30 * k // 782)
            out += f"\r{k}/782 [{bar + '>' if k < 782 else bar:.<30}] - ETA: {9 - k // 90}s - loss: {v * 1.02:.4f} - accuracy: {0.4 + e / 50:.4f}"
        out += f"\r782/782 [{'=' * 30}] - 11s 14ms/step - loss: {v:.4f} - accuracy: {0.4 + e / 50:.4f} - val_loss: {v * 1.08:.4f} - val_accuracy: {0.38 + e / 55:.4f} - lr: 0.0010\n"
    return text(d / "keras2.log", out)


@case("healthy")
def rank_lines_interleaved(d: Path) -> Path:
    ranks = [falling(200, 5.0, 2.0, 860 + r, 0.08) for r in range(4)]
    order = [(i, r) for i in range(200) for r in (0, 2, 1, 3)]
    return save(
        d / "out.log", [f"[rank{r}] step {i} train/loss {ranks[r][i]:.4f}" for i, r in order]
    )


@case("healthy")
def rotated_logs_of_one_run(d: Path) -> Path:
    lines = [
        f"{clock(i)} INFO step={i} loss={v:.4f}"
        for i, v in enumerate(falling(900, 4.1, 1.1, 861, 0.04))
    ]
    save(d / "train.log.2", lines[:300])
    save(d / "train.log.1", lines[300:600])
    save(d / "train.log", lines[600:])
    return d


@case("healthy")
def wide_csv_of_many_columns(d: Path) -> Path:
    columns: dict[str, Sequence[float]] = {
        "loss/total": falling(400, 3, 1, 862, 0.03),
        "lr/pg0": cosine(400, 1e-3),
    }
    for k in range(60):
        columns[f"grad/layer{k}.weight"] = around(400, 0.1 + k / 50, 862 + k, 0.2)
    return csv(d / "wide.csv", columns, 2)
