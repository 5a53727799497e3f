"""The fifth blind set: runs that go wrong in the curve, the memory, the time or the schedule."""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import json
import math
import random
from pathlib import Path

from support import fifth_blind_dialects as tool
from support.external_log_simulators import (
    INF,
    NAN,
    around,
    cosine,
    falling,
    linear,
    lost_from,
    norms,
    once,
)
from support.external_log_writers import clock, hf_console, hf_rows, hf_state, save
from support.fifth_blind_logs import case
from support.second_blind_logs import csv, grow, jsonl, plain, rise_to, swinging
from support.third_blind_logs import text

LEAK = ("HD801", "HD802")
DIVERGED = ("HD104", "HD403", "HD103")
STALLED = ("HD105", "HD404")
NONFINITE = ("HD101", "HD102", "HD201")


@case("findings", codes=DIVERGED)
def llmc_diverges_for_good(d: Path) -> Path:
    loss = rise_to(falling(900, 11.0, 3.6, 901, 0.012), 500, 540, 7.4, 901)
    return save(d / "main.log", tool.llmc(loss, [*norms(500, 901, 0.8), *norms(400, 902, 3.0)]))


@case("findings", codes=NONFINITE)
def maxtext_nan(d: Path) -> Path:
    return save(
        d / "maxtext.log", tool.maxtext(lost_from(falling(500, 11.8, 3.4, 903, 0.012), 310))
    )


@case("findings", codes=LEAK)
def composer_allocated_memory_grows(d: Path) -> Path:
    return save(
        d / "mpt.log",
        tool.composer(falling(600, 11.2, 3.3, 904, 0.012), grow(600, 21.0, 71.0, 904)),
    )


@case("findings", codes=STALLED)
def litgpt_at_ln_vocabulary(d: Path) -> Path:
    return save(d / "litgpt.log", tool.litgpt(around(600, math.log(50304), 905, 0.002)))


@case("findings", codes=NONFINITE)
def icefall_inf_then_nan(d: Path) -> Path:
    loss = falling(320, 7.1, 0.4, 906, 0.06)
    return save(d / "log-train.txt", tool.icefall([*loss[:200], INF, *[NAN] * 119]))


@case("findings", codes=("HD202", "HD104", "HD207"))
def coqui_norm_explodes(d: Path) -> Path:
    norm = [30 * math.exp(max(0, i - 100) / 14) for i in range(240)]
    loss = rise_to(falling(240, 38.0, 21.0, 907, 0.03), 160, 220, 61.0, 907)
    return text(d / "trainer_0_log.txt", tool.coqui(loss, norm))


@case("findings", codes=NONFINITE)
def flair_nan(d: Path) -> Path:
    return save(d / "training.log", tool.flair(lost_from(falling(200, 2.9, 0.21, 908, 0.04), 77)))


@case("findings", codes=DIVERGED)
def opennmt_rises_to_the_end(d: Path) -> Path:
    return save(
        d / "onmt.log", tool.opennmt(rise_to(falling(300, 9.4, 2.6, 909, 0.02), 170, 290, 6.9, 909))
    )


@case("findings", codes=NONFINITE)
def marian_cost_nan(d: Path) -> Path:
    return save(
        d / "train.log",
        tool.marian(lost_from(falling(240, 9.2, 2.6, 910, 0.02), 101), norms(240, 910)),
    )


@case("findings", "failed")
def estimator_nan_hook(d: Path) -> Path:
    lines = tool.estimator(falling(200, 2.4, 0.4, 911, 0.06))
    lines += [
        "ERROR:tensorflow:Model diverged with loss = NaN.",
        "Traceback (most recent call last):",
        '  File "train.py", line 88, in <module>',
        "    tf.estimator.train_and_evaluate(est, train_spec, eval_spec)",
        "tensorflow.python.training.basic_session_run_hooks.NanLossDuringTrainingError: NaN loss during training.",
    ]
    return save(d / "tf.log", lines)


@case("findings", codes=("HD115",))
def paddleocr_period_two(d: Path) -> Path:
    loss = [*falling(80, 42.0, 6.0, 912, 0.05), *swinging(320, 5.0, 13.0, 912)]
    return save(d / "train.log", tool.paddleocr(loss))


@case("findings", codes=("HD105",))
def mindspore_exactly_constant(d: Path) -> Path:
    return save(d / "ms.log", tool.mindspore([2.302585] * 500))


@case("findings", codes=(*NONFINITE, *DIVERGED, "HD105"))
def caffe_eighty_seven(d: Path) -> Path:
    """87.3365 is -log(FLT_MIN): Caffe's softmax loss after the weights are gone."""
    loss = [*falling(120, 6.91, 3.8, 913, 0.04), *[87.3365] * 180]
    return save(d / "caffe.INFO", tool.caffe(loss))


@case("findings", codes=NONFINITE)
def darknet_minus_nan(d: Path) -> Path:
    lines = tool.darknet(lost_from(falling(400, 900.0, 3.1, 914, 0.05), 210))
    return save(
        d / "yolo.log", [line.replace(": nan, nan avg", ": -nan, -nan avg") for line in lines]
    )


@case("findings", codes=STALLED)
def yolox_flat_from_the_start(d: Path) -> Path:
    return save(d / "train_log.txt", tool.yolox(around(500, 15.4, 915, 0.03)))


@case("findings", "healthy", says="validation")
def detr_overfits(d: Path) -> Path:
    train = falling(300, 36.0, 1.1, 916, 0.01)
    test = [v * 1.1 + 2 if e < 60 else 13.0 + 0.06 * (e - 60) for e, v in enumerate(train)]
    return save(d / "log.txt", tool.detr_json(train, test))


@case("findings", codes=LEAK)
def metric_logger_max_mem_grows(d: Path) -> Path:
    return save(
        d / "mae.log",
        tool.metric_logger(falling(800, 0.98, 0.41, 917, 0.01), grow(800, 5600, 31000, 917)),
    )


@case("findings", codes=NONFINITE)
def swin_nan_norm_then_nan_loss(d: Path) -> Path:
    loss = lost_from(falling(600, 6.93, 3.3, 918, 0.03), 402)
    return save(d / "log_rank0.txt", tool.swin(loss, lost_from(norms(600, 918, 2.2), 401)))


@case("findings", codes=STALLED)
def imagenet_at_ln_thousand(d: Path) -> Path:
    return save(d / "resnet.log", tool.imagenet(around(500, 6.908, 919, 0.004)))


@case("findings", codes=NONFINITE)
def mnist_nan(d: Path) -> Path:
    return save(d / "mnist.txt", tool.mnist(lost_from(falling(94 * 4, 2.3, 0.1, 920, 0.3), 140)))


@case("findings", codes=LEAK)
def mlx_peak_memory_grows(d: Path) -> Path:
    return save(
        d / "mlx.log", tool.mlx(falling(200, 2.6, 1.1, 921, 0.05), grow(200, 12.0, 58.0, 921))
    )


@case("findings", codes=(*NONFINITE, *DIVERGED))
def rsl_rl_value_loss_inf(d: Path) -> Path:
    loss = [
        0.02 if i < 200 else min(0.02 * 10 ** (i - 200), 1e30) if i < 230 else INF
        for i in range(300)
    ]
    return save(d / "rsl.log", tool.rsl_rl(loss, [10.0] * 300))


@case("findings", codes=STALLED)
def nnunet_constant_at_zero_dice(d: Path) -> Path:
    rng = random.Random(922)
    return save(
        d / "training_log.txt",
        tool.nnunet(
            [0.01 + rng.gauss(0, 0.002) for _ in range(200)],
            [0.012 + rng.gauss(0, 0.002) for _ in range(200)],
        ),
    )


@case("findings", codes=DIVERGED)
def deepmd_rmse_rises(d: Path) -> Path:
    return save(
        d / "lcurve.out",
        tool.lcurve(rise_to(falling(400, 21.0, 1.4, 923, 0.06), 220, 260, 9.0, 923)),
    )


@case("findings", codes=DIVERGED)
def modded_loss_up_after_two_thirds(d: Path) -> Path:
    return save(
        d / "a.txt",
        tool.modded(rise_to(falling(1750, 10.8, 3.5, 924, 0.012), 1100, 1180, 5.9, 924)),
    )


@case("findings", codes=NONFINITE)
def kohya_average_nan(d: Path) -> Path:
    return text(d / "kohya.log", tool.kohya(lost_from(around(900, 0.11, 925, 0.02), 300)))


@case("findings", codes=NONFINITE)
def diffusers_step_loss_nan(d: Path) -> Path:
    rng = random.Random(926)
    loss = [abs(rng.gauss(0.09, 0.08)) + 0.002 for _ in range(800)]
    return text(
        d / "dreambooth.log",
        tool.kohya(lost_from(loss, 500), "lr=1e-5, step_loss").replace("steps:", "Steps:"),
    )


@case("findings", codes=("HD414", "HD313", "HD101", "HD201"))
def neox_skips_every_iteration(d: Path) -> Path:
    lines = tool.neox(
        [*falling(150, 11.0, 3.7, 927, 0.012), *around(150, 4.6, 928, 0.002)], norms(300, 928, 0.7)
    )
    bad = [
        line.replace("skipped iterations:   0", "skipped iterations:  10") if i >= 150 else line
        for i, line in enumerate(lines)
    ]
    return save(d / "neox.out", bad)


@case("findings", codes=("HD202", "HD207", *DIVERGED))
def nanotron_norm_grows_a_thousandfold(d: Path) -> Path:
    norm = [0.4 * math.exp(max(0.0, i - 300) / 40) for i in range(600)]
    return save(d / "nanotron.log", tool.nanotron(falling(600, 11.9, 3.4, 929, 0.012), norm))


@case("findings", codes=NONFINITE)
def speechbrain_valid_nan(d: Path) -> Path:
    train = falling(40, 4.1, 0.41, 930, 0.02, 0.2)
    return save(
        d / "train_log.txt", tool.speechbrain(train, lost_from([v * 1.1 for v in train], 20))
    )


@case("findings", codes=DIVERGED)
def wenet_loss_jumps_and_stays(d: Path) -> Path:
    return save(
        d / "train.log",
        tool.wenet(rise_to(falling(400, 91.0, 11.0, 931, 0.06), 230, 236, 70.0, 931)),
    )


@case("findings", codes=STALLED)
def skorch_at_ln_two(d: Path) -> Path:
    rng = random.Random(932)
    train = [0.6932 + rng.gauss(0, 0.0006) for _ in range(60)]
    return save(d / "skorch.txt", tool.skorch(train, [v + 0.0003 for v in train]))


@case("findings", codes=NONFINITE)
def stylegan_generator_nan(d: Path) -> Path:
    rng = random.Random(933)
    gen = [1.4 + rng.gauss(0, 0.15) for _ in range(250)]
    return save(d / "stats.jsonl", tool.stylegan_stats(lost_from(gen, 140), lost_from(gen, 140)))


@case("findings", codes=NONFINITE)
def allennlp_last_epochs_nan(d: Path) -> Path:
    train = lost_from(falling(24, 1.4, 0.2, 934, 0.01, 0.25), 15)
    return tool.allennlp(d / "model", train, train)


@case("findings", codes=("HD106",))
def csv_one_term_dies(d: Path) -> Path:
    """The KL term collapses to 0 and stays there: posterior collapse of a VAE."""
    recon = falling(900, 190, 101, 935, 0.02)
    kl = [4.0 * math.exp(-i / 25) if i < 120 else 0.0 for i in range(900)]
    return csv(
        d / "vae.csv",
        {
            "loss": [a + b for a, b in zip(recon, kl, strict=True)],
            "loss_recon": recon,
            "loss_kl": kl,
        },
        3,
    )


@case("findings", codes=("HD406", "HD403", "HD104", "HD103"))
def jsonl_rate_times_hundred_after_resume(d: Path) -> Path:
    rate = [3e-4] * 500 + [3e-2] * 500
    loss = rise_to(falling(1000, 5.1, 2.0, 936, 0.02), 500, 520, 6.8, 936)
    return jsonl(d / "m.jsonl", {"loss": loss, "lr": rate}, 2)


@case("findings", codes=("HD405",))
def csv_rate_falls_to_nothing_at_a_tenth(d: Path) -> Path:
    rate = [3e-4 * 0.95**i for i in range(1500)]
    loss = [*falling(150, 4.0, 2.6, 937, 0.02), *around(1350, 2.9, 938, 0.01)]
    return csv(d / "log.csv", {"train_loss": loss, "learning_rate": rate}, 3)


@case("findings", codes=LEAK)
def jsonl_swap_and_anon_grow(d: Path) -> Path:
    return jsonl(
        d / "m.jsonl",
        {"loss": falling(1200, 3, 1, 939, 0.03), "sys/cpu_ram_gib": grow(1200, 11, 93, 939)},
        4,
    )


@case("findings", codes=LEAK)
def console_alloc_in_mib_with_unit(d: Path) -> Path:
    gpu = grow(600, 9000, 71000, 940)
    return save(
        d / "t.log",
        [
            f"[{clock(i)}] it {i} | loss {v:.4f} | alloc {gpu[i]:.0f}MiB | {11.2 + i % 3:.1f} it/s"
            for i, v in enumerate(falling(600, 3, 1, 940, 0.03))
        ],
    )


@case("findings", codes=LEAK)
def csv_uss_kb(d: Path) -> Path:
    return csv(
        d / "log.csv",
        {"loss": falling(900, 3, 1, 941, 0.03), "uss_kb": grow(900, 4.1e6, 5.2e7, 941)},
        3,
    )


@case("findings", codes=("HD804",))
def llmc_slows_down_fourfold(d: Path) -> Path:
    ms = [240 * (1 + 3 * i / 900) for i in range(900)]
    return save(d / "main.log", tool.llmc(falling(900, 11.0, 3.4, 942, 0.012), norms(900, 942), ms))


@case("findings", codes=("HD804",))
def csv_samples_per_second_collapse(d: Path) -> Path:
    speed = [812 * (1 if i < 400 else max(0.06, math.exp(-(i - 400) / 120))) for i in range(1200)]
    return csv(d / "log.csv", {"loss": falling(1200, 3, 1, 943, 0.03), "samples_per_sec": speed}, 3)


@case("findings", codes=NONFINITE)
def hf5_console_zero_loss_nan_norm(d: Path) -> Path:
    loss = lost_from(falling(500, 2.1, 0.9, 944, 0.05), 260)
    rows = hf_rows(loss, lost_from(norms(500, 944), 260), linear(500, 2e-5), 10)
    return save(d / "run.log", hf_console(rows, 500, strings=True))


@case("findings", codes=STALLED)
def hf_state_flat_and_norm_tiny(d: Path) -> Path:
    rows = hf_rows(around(900, 1.0986, 945, 0.004), [3e-4] * 900, cosine(900, 2e-5, 20), 10)
    return hf_state(d / "trainer_state.json", rows, 10, 900)


@case("findings", codes=NONFINITE)
def ray_tune_nan_in_result_json(d: Path) -> Path:
    loss = lost_from(falling(120, 2.3, 0.5, 946, 0.03), 61)
    return save(
        d / "train_8fa3/result.json",
        [
            json.dumps(
                {
                    "loss": v,
                    "done": False,
                    "training_iteration": i + 1,
                    "trial_id": "8fa3",
                    "timestamp": 1741687200 + i,
                    "config": {"lr": 1.0},
                }
            )
            for i, v in enumerate(loss)
        ],
    )


@case("findings", codes=DIVERGED)
def xgboost_train_error_rises(d: Path) -> Path:
    loss = [0.5 + 2.0 * math.exp(-i / 10) if i < 60 else 0.5 * 1.03 ** (i - 60) for i in range(200)]
    return save(
        d / "xgb.log",
        [f"[{i}]\ttrain-rmse:{v:.5f}\tvalid-rmse:{v * 1.06:.5f}" for i, v in enumerate(loss)],
    )


@case("findings", codes=NONFINITE)
def dvclive_nan(d: Path) -> Path:
    loss = lost_from(falling(200, 2.3, 0.4, 947, 0.04), 120)
    save(
        d / "dvclive/plots/metrics/train/loss.tsv",
        ["step\tloss", *(f"{i}\t{v!r}" for i, v in enumerate(loss))],
    )
    (d / "dvclive/metrics.json").write_text(json.dumps({"train": {"loss": NAN}, "step": 199}))
    return d / "dvclive"


@case("findings", codes=DIVERGED)
def sacred_metrics_json_diverges(d: Path) -> Path:
    loss = rise_to(falling(300, 2.3, 0.4, 948, 0.04), 170, 200, 2.2, 948)
    d.mkdir(exist_ok=True)
    (d / "metrics.json").write_text(
        json.dumps(
            {
                "training.loss": {
                    "steps": list(range(0, 3000, 10)),
                    "timestamps": [clock(i).replace(" ", "T") for i in range(300)],
                    "values": loss,
                }
            }
        )
    )
    return d / "metrics.json"


@case("findings", codes=STALLED)
def splatting_loss_constant(d: Path) -> Path:
    out = ""
    for i, v in enumerate(around(800, 0.3111, 949, 0.003)):
        out += f"\rTraining progress: {100 * (i + 1) // 800:3d}%|████      | {(i + 1) * 30}/30000 [{i // 6:02d}:{i % 60:02d}<10:12, 41.12it/s, Loss={v:.7f}]"
    return text(d / "gs.log", out)


@case("findings", codes=NONFINITE)
def kubectl_nan_of_one_pod(d: Path) -> Path:
    pods = [falling(200, 5.1, 2.1, 950 + p, 0.04) for p in range(2)]
    pods[1] = lost_from(pods[1], 90)
    return save(
        d / "pod.log",
        [
            f"[pod/train-{p}/pytorch] epoch 0 step {i}/900 loss {pods[p][i]:.4f}"
            for i in range(200)
            for p in range(2)
        ],
    )


@case("findings", codes=NONFINITE)
def notebook_table_nan(d: Path) -> Path:
    loss = lost_from(falling(120, 1.9, 0.9, 952, 0.12), 40)
    return save(
        d / "colab.txt",
        [
            " [120/120 15:12, Epoch 0/1]",
            "Step\tTraining Loss",
            *(f"{i + 1}\t{v:.6f}" for i, v in enumerate(loss)),
        ],
    )


@case("findings", codes=NONFINITE)
def keras2_loss_nan(d: Path) -> Path:
    out = ""
    for e, v in enumerate(lost_from(falling(20, 1.6, 0.35, 953, 0.01, 0.3), 9)):
        out += f"Epoch {e + 1}/20\n782/782 [{'=' * 30}] - 11s 14ms/step - loss: {v:.4f} - accuracy: 0.1000 - val_loss: {v:.4f} - val_accuracy: 0.1000\n"
    return text(d / "keras2.log", out)


@case("findings", codes=NONFINITE)
def utf16_powershell_nan(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    (d / "out.txt").write_bytes(
        "\r\n".join(plain(lost_from(falling(300, 2.3, 0.6, 954, 0.04), 190))).encode("utf-16")
    )
    return d / "out.txt"


@case("findings", codes=("HD101", "HD103"))
def one_nan_row_then_on(d: Path) -> Path:
    """A single NaN in the middle: one bad batch, the weights survived."""
    return csv(
        d / "log.csv",
        {"loss": once(falling(600, 2.3, 0.6, 955, 0.04), 301, NAN), "lr": cosine(600, 1e-3)},
    )


@case("findings", codes=("HD115", *DIVERGED))
def waves_with_growing_height(d: Path) -> Path:
    loss = [
        0.6 + 1.7 * math.exp(-i / 60) + (0.002 * max(0, i - 150)) * (1 + math.cos(math.pi * i))
        for i in range(600)
    ]
    return save(d / "train.log", plain(loss))


@case("findings", codes=(*STALLED, "HD205", "HD203", "HD405"))
def loss_repeats_the_same_values_each_epoch(d: Path) -> Path:
    """Nothing is updated: every epoch gives the same fifty losses again."""
    rng = random.Random(956)
    epoch = [2.31 + rng.gauss(0, 0.05) for _ in range(50)]
    return save(d / "train.log", plain(epoch * 10))
