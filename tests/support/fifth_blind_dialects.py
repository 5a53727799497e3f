"""Writers of lines for the fifth blind set: dialects that the earlier sets do not contain.

Each takes one loss per row and gives the lines of that tool, banners included.
"""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from support.external_log_simulators import cosine
from support.external_log_writers import clock

Loss = Sequence[float]


def llmc(loss: Loss, norm: Loss, ms: Loss | None = None) -> list[str]:
    n = len(loss)
    out = [
        "+-----------------------+----------------------------------------------------+",
        "| train data pattern    | dev/data/fineweb10B/fineweb_train_*.bin            |",
        "| micro batch size B    | 64                                                 |",
        "| learning rate (LR)    | 6.000000e-04                                       |",
        "+-----------------------+----------------------------------------------------+",
        "num_parameters: 124475904 => bytes: 248951808",
        "val loss 11.009205",
    ]
    for i, v in enumerate(loss):
        took = ms[i] if ms else 239.17 + i % 5
        out.append(
            f"step {i + 1:4d}/{n} | loss {v:.6f} (+{0.12 * (i % 3):.2f}z)| norm {norm[i]:.4f} (-{0.3 * (i % 4):.2f}z)| lr {cosine(n, 6e-4, 30)[i] if n < 400 else 6e-4:.2e} | {took:.2f} ms | 52.1% bf16 MFU | {int(524288e3 / took)} tok/s"
        )
        if (i + 1) % 250 == 0:
            out.append(f"val loss {v * 1.01:.6f}")
    return out


def maxtext(loss: Loss) -> list[str]:
    out = ["System Information: Jax Version: 0.4.35", "Config param per_device_batch_size: 4.0"]
    return out + [
        f"completed step: {i}, seconds: {3.214 + i % 4 / 100:.3f}, TFLOP/s/device: 211.312, Tokens/s/device: 5098.412, total_weights: 65536, loss: {v:.3f}"
        for i, v in enumerate(loss)
    ]


def composer(loss: Loss, memory: Loss | None = None) -> list[str]:
    out = ["******************************", "Config:", "composer_version: 0.28.0"]
    for i, v in enumerate(loss):
        out.append(f"[batch={i + 1}/{len(loss)}]:")
        out.append(f"\t Train time/batch: {i}")
        out.append(f"\t Train time/sample: {i * 512}")
        out.append(f"\t Train time/token: {i * 1048576}")
        if memory:
            out.append(f"\t Train memory/current_allocated_mem: {memory[i]:.4f}")
            out.append("\t Train memory/alloc_retries: 0")
        out.append(f"\t Train loss/train/total: {v:.4f}")
        out.append(f"\t Train metrics/train/LanguagePerplexity: {math.exp(min(v, 80)):.4f}")
        out.append(f"\t Train throughput/tokens_per_sec: {131072.4 + i % 9:.4f}")
        out.append(f"\t Train lr-DecoupledAdamW/group0: {min(6e-4, 6e-6 * (i + 1)):.4f}")
    return out


def litgpt(loss: Loss) -> list[str]:
    out = ["Seed set to 1337", "Number of trainable parameters: 1,235,814,400"]
    for i, v in enumerate(loss):
        out.append(
            f"Epoch {1 + i // 200} | iter {(i + 1) * 4} step {i + 1} | loss train: {v:.3f}, val: {'n/a' if i < 100 else f'{v * 1.05:.3f}'} | iter time: {311.2 + i % 8:.2f} ms (step) remaining time: 0:{59 - i % 60:02d}:12"
        )
    return out


def icefall(loss: Loss) -> list[str]:
    out = ["2025-03-11 10:00:00,112 INFO [train.py:1064] (0/4) Training started"]
    mean = loss[0]
    for i, v in enumerate(loss):
        mean = v if i % 40 == 0 else mean * 0.95 + v * 0.05
        out.append(
            f"{clock(i, 20)},{i % 900 + 100} INFO [train.py:1001] (0/4) Epoch {1 + i // 40}, batch {i % 40 * 50}, loss[loss={v:.4g}, simple_loss={v * 1.3:.4g}, pruned_loss={v * 0.9:.4g}, over {16000 + i % 7 * 311:.2f} frames. ],"
            f" tot_loss[loss={mean:.4g}, simple_loss={mean * 1.3:.4g}, pruned_loss={mean * 0.9:.4g}, over {5e6 + i:.2f} frames. ], batch size: {60 + i % 9}, lr: {4.5e-2 / (1 + i / 90):.2e}, grad_scale: {2.0 if i < 60 else 8.0}"
        )
    return out


def coqui(loss: Loss, norm: Loss) -> str:
    out = " > Training Environment:\n | > Backend: Torch\n | > Mixed precision: True\n\n"
    mean = loss[0]
    for i, v in enumerate(loss):
        mean = mean * 0.9 + v * 0.1
        if i % 40 == 0:
            out += f"\n\x1b[4m\x1b[1m > EPOCH: {i // 40}/1000\x1b[0m\n --> run-March-11-2025\n\n\x1b[1m > TRAINING ({clock(i)}) \x1b[0m\n"
        out += (
            f"\n\x1b[1m   --> TIME: {clock(i)} -- STEP: {i % 40 * 25}/1000 -- GLOBAL_STEP: {i * 25}\x1b[0m\n     | > loss: {v:.5f}  ({mean:.5f})\n     | > amp_scaler: 65536.0  (65536.0)\n"
            f"     | > grad_norm: {norm[i]:.5f}  ({norm[i]:.5f})\n     | > current_lr: 0.0002 \n     | > step_time: 0.4121  (0.4221)\n     | > loader_time: 0.0041  (0.0051)\n"
        )
    return out


def flair(loss: Loss) -> list[str]:
    return [
        f"{clock(i, 9)},{i % 900 + 100} epoch {1 + i // 10} - iter {(i % 10 + 1) * 93}/938 - loss {v:.8f} - time (sec): {9.1 + i % 10:.2f} - samples/sec: 321.14 - lr: {0.1 / (1 + i // 60):.6f} - momentum: 0.000000"
        for i, v in enumerate(loss)
    ]


def opennmt(loss: Loss) -> list[str]:
    return [
        f"[{clock(i, 20)},{i % 900 + 100} INFO] Step {(i + 1) * 50}/100000; acc: {min(70, 3 + i / 4):.1f}; ppl: {math.exp(min(v, 80)):8.1f}; xent: {v:.1f}; lr: {min(1e-3, 1e-5 * (i + 1)):.5f}; sents:   31213; bsz: 3012/3101/ 124; 31211/32101 tok/s; {20 * (i + 1):6d} sec;"
        for i, v in enumerate(loss)
    ]


def marian(loss: Loss, norm: Loss) -> list[str]:
    return [
        f"[{clock(i, 60)}] Ep. {1 + i // 40} : Up. {(i + 1) * 500} : Sen. {(i % 40 + 1) * 41231:,} : Cost {v:.8f} * {1012311 + i:,} @ {12001 + i:,} after {(i + 1) * 1012311:,} : Time {61.2 + i % 3:.2f}s : {16541.11:.2f} words/s : gNorm {norm[i]:.4f} : L.r. {3e-4:.4e}"
        for i, v in enumerate(loss)
    ]


def estimator(loss: Loss) -> list[str]:
    out = ["INFO:tensorflow:Running local_init_op.", "INFO:tensorflow:Done running local_init_op."]
    for i, v in enumerate(loss):
        if i:
            out.append(f"INFO:tensorflow:global_step/sec: {31.2 + i % 3:.4f}")
            out.append(f"INFO:tensorflow:loss = {v!r}, step = {i * 100} (3.212 sec)")
        else:
            out.append(f"INFO:tensorflow:loss = {v!r}, step = 0")
    return out


def paddleocr(loss: Loss, norm: bool = False) -> list[str]:
    return [
        f"[{clock(i, 4, '/')}] ppocr INFO: epoch: [{1 + i // 50}/200], global_step: {(i + 1) * 10}, lr: 0.001000, acc: {min(0.9, i / 500):.6f}, norm_edit_dis: 0.312313, loss: {v:.6f}, avg_reader_cost: 0.01123 s, avg_batch_cost: 0.31233 s, avg_samples: 128.0, ips: 409.81231 samples/s, eta: 4:12:11"
        for i, v in enumerate(loss)
    ]


def mindspore(loss: Loss) -> list[str]:
    return [f"epoch: {1 + i // 100} step: {i % 100 + 1}, loss is {v}" for i, v in enumerate(loss)]


def caffe(loss: Loss) -> list[str]:
    out = ["I0311 10:00:00.123456  4711 solver.cpp:57] Solver scaffolding done."]
    for i, v in enumerate(loss):
        at = f"I0311 {10 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}.{i % 900000 + 100000}  4711"
        out.append(
            f"{at} solver.cpp:228] Iteration {i * 20} (12.311 iter/s, 1.624s/20 iters), loss = {v:.6g}"
        )
        out.append(
            f"{at} solver.cpp:247]     Train net output #0: loss = {v:.6g} (* 1 = {v:.6g} loss)"
        )
        out.append(f"{at} sgd_solver.cpp:106] Iteration {i * 20}, lr = 0.01")
    return out


def darknet(loss: Loss) -> list[str]:
    out, mean = ["yolov4-custom", "Learning Rate: 0.001, Momentum: 0.949, Decay: 0.0005"], loss[0]
    for i, v in enumerate(loss):
        mean = mean * 0.9 + v * 0.1
        out += [
            f" {i + 1}: {v:.6f}, {mean:.6f} avg loss, 0.001000 rate, 3.211312 seconds, {(i + 1) * 64} images, 12.311231 hours left",
            "Loaded: 0.000041 seconds",
        ]
    return out


def yolox(loss: Loss) -> list[str]:
    return [
        f"{clock(i, 3)} | INFO     | yolox.core.trainer:258 - epoch: {1 + i // 50}/300, iter: {(i % 50 + 1) * 10}/500, gpu mem: 9123Mb, iter_time: 0.312s, data_time: 0.002s, total_loss: {v:.1f}, iou_loss: {v * 0.4:.1f}, l1_loss: 0.0, conf_loss: {v * 0.45:.1f}, cls_loss: {v * 0.15:.1f}, lr: {min(1e-2, 1e-5 * (i + 1)):.3e}, size: 640, ETA: 1 day, 3:12:11"
        for i, v in enumerate(loss)
    ]


def detr_json(train: Loss, test: Loss) -> list[str]:
    return [
        json.dumps(
            {
                "train_lr": 1e-4 if e < 200 else 1e-5,
                "train_class_error": 90 * math.exp(-e / 40),
                "train_grad_norm": 20.1 + e % 3,
                "train_loss": v,
                "train_loss_ce": v * 0.1,
                "train_loss_bbox": v * 0.3,
                "test_class_error": 91 * math.exp(-e / 50),
                "test_loss": test[e],
                "epoch": e,
                "n_parameters": 41302368,
            }
        )
        for e, v in enumerate(train)
    ]


def metric_logger(loss: Loss, memory: Loss | None = None) -> list[str]:
    """MAE, BEiT, DeiT: the MetricLogger of DETR."""
    out, mean = ["Not using distributed mode", "Start training for 100 epochs"], loss[0]
    for i, v in enumerate(loss):
        mean = mean * 0.9 + v * 0.1
        mb = int(memory[i]) if memory else 5678
        out.append(
            f"Epoch: [{i // 16}]  [{i % 16 * 20:3d}/312]  eta: 0:0{2 - i % 16 // 6}:11  lr: {min(1.5e-4, 1e-6 * (i + 1)):.6f}  loss: {mean:.4f} ({mean:.4f})  time: 0.3123  data: 0.0002  max mem: {mb}"
        )
        if i % 16 == 15:
            out.append(f"Epoch: [{i // 16}] Total time: 0:01:37 (0.3123 s / it)")
            out.append(f"Averaged stats: lr: 0.000150  loss: {mean:.4f} ({mean:.4f})")
    return out


def swin(loss: Loss, norm: Loss) -> list[str]:
    return [
        f"[{clock(i, 6)} swin_tiny] (main.py 232): INFO Train: [{i // 25}/300][{i % 25 * 50}/1251]\teta 0:0{9 - i % 25 // 3}:12 lr {min(1e-3, 1e-6 * (i + 1)):.6f}\t wd 0.0500\ttime 0.3123 (0.3211)\tloss {v:.4f} ({v:.4f})\tgrad_norm {norm[i]:.4f} ({norm[i]:.4f})\tloss_scale 65536.0000 (65536.0000)\tmem 8123MB"
        for i, v in enumerate(loss)
    ]


def imagenet(loss: Loss) -> list[str]:
    return [
        f"Epoch: [{i // 50}][{i % 50 * 100:5d}/5005]\tTime  0.312 ( 0.321)\tData  0.001 ( 0.011)\tLoss {v:.4e} ({v:.4e})\tAcc@1  {min(75, i / 5):6.2f} ( {min(75, i / 5):6.2f})\tAcc@5  {min(92, i / 4):6.2f} ( {min(92, i / 4):6.2f})"
        for i, v in enumerate(loss)
    ]


def mnist(loss: Loss) -> list[str]:
    out = []
    for i, v in enumerate(loss):
        out.append(
            f"Train Epoch: {1 + i // 94} [{i % 94 * 640}/60000 ({i % 94 * 100 // 94}%)]\tLoss: {v:.6f}"
        )
        if i % 94 == 93:
            out.append(
                f"\nTest set: Average loss: {v * 0.9:.4f}, Accuracy: {9400 + i}/10000 ({94 + i / 100:.0f}%)\n"
            )
    return out


def mlx(loss: Loss, memory: Loss | None = None) -> list[str]:
    out = [
        "Loading pretrained model",
        "Starting training..., iters: 1000",
        "Iter 1: Val loss 2.812, Val took 12.121s",
    ]
    for i, v in enumerate(loss):
        gb = memory[i] if memory else 12.3
        out.append(
            f"Iter {(i + 1) * 10}: Train loss {v:.3f}, Learning Rate 1.000e-05, It/sec 0.512, Tokens/sec 234.121, Trained Tokens {(i + 1) * 4567}, Peak mem {gb:.3f} GB"
        )
    return out


def rsl_rl(loss: Loss, reward: Loss) -> list[str]:
    out = []
    for i, v in enumerate(loss):
        out += [
            "#" * 80,
            f"                       \x1b[1m Learning iteration {i}/1500 \x1b[0m                       ",
            "",
            "                       Computation: 98121 steps/s (collection: 0.812s, learning 0.189s)",
            f"               Value function loss: {v:.4f}",
            f"                    Surrogate loss: {-0.0012 - i % 5 / 1e4:.4f}",
            f"             Mean action noise std: {max(0.3, 1 - i / 900):.2f}",
            f"                       Mean reward: {reward[i]:.2f}",
            "               Mean episode length: 212.11",
            "-" * 80,
            f"                   Total timesteps: {(i + 1) * 98304}",
            "                    Iteration time: 1.00s",
        ]
    return out


def nnunet(train: Loss, val: Loss) -> list[str]:
    out = [f"{clock(0)}.112311: do_dummy_2d_data_aug: False"]
    for e, v in enumerate(train):
        at = f"{clock(e, 121)}.{e % 900000 + 100000}:"
        out += [
            f"{at} ",
            f"{at} Epoch {e}",
            f"{at} Current learning rate: {0.01 * (1 - e / 1000) ** 0.9:.5f}",
            f"{at} train_loss {v:.4f}",
            f"{at} val_loss {val[e]:.4f}",
            f"{at} Pseudo dice [{min(0.9, 0.4 + e / 100):.4f}, {min(0.8, 0.3 + e / 100):.4f}]",
            f"{at} Epoch time: 121.12 s",
        ]
    return out


def lcurve(rmse: Loss) -> list[str]:
    out = [
        "#  step      rmse_val    rmse_trn    rmse_e_val  rmse_e_trn    rmse_f_val  rmse_f_trn         lr",
        "# If there is no available reference data, rmse_*_{val,trn} will print nan",
    ]
    return out + [
        f"{i * 100:7d}      {v * 1.1:.2e}    {v:.2e}      {v * 0.02:.2e}    {v * 0.02:.2e}      {v * 0.3:.2e}    {v * 0.3:.2e}    {1e-3 * 0.95 ** (i / 50):.1e}"
        for i, v in enumerate(rmse)
    ]


def modded(loss: Loss) -> list[str]:
    out = ["=" * 100, "Running Python 3.12.7", "Running PyTorch 2.6.0", "=" * 100]
    for i, v in enumerate(loss):
        if i % 125 == 0:
            out.append(
                f"step:{i}/{len(loss)} val_loss:{v * 1.01:.4f} train_time:{i * 142}ms step_avg:{142.1:.2f}ms"
            )
        out.append(
            f"step:{i + 1}/{len(loss)} train_loss:{v:.4f} train_time:{(i + 1) * 142}ms step_avg:{142.1:.2f}ms"
        )
    return out


def kohya(loss: Loss, name: str = "avr_loss") -> str:
    out, n = (
        "running training / 学習開始\n  num train images * repeats / 学習画像の数×繰り返し回数: 400\nepoch 1/10\n",
        len(loss),
    )
    for i, v in enumerate(loss):
        share = 100 * (i + 1) // n
        out += f"\rsteps: {share:3d}%|{'█' * (share // 10):<10}| {i + 1}/{n} [{i // 60:02d}:{i % 60:02d}<10:12,  1.51it/s, {name}={v:.3g}]"
    return out


def neox(loss: Loss, norm: Loss | None = None) -> list[str]:
    return [
        f" samples/sec: 121.312 | iteration {(i + 1) * 10:8d}/  143000 | elapsed time per iteration (ms): {8441.2 + i % 5:.1f} | learning rate: {min(6e-4, 6e-6 * (i + 1)):.3E} | approx flops per GPU: 112.4TFLOPS | lm_loss: {v:.6E} |"
        + (f" grad_norm: {norm[i]:.3f} |" if norm else "")
        + " number of skipped iterations:   0 | number of nan iterations:   0 |"
        for i, v in enumerate(loss)
    ]


def nanotron(loss: Loss, norm: Loss) -> list[str]:
    def human(n: float) -> str:
        for unit in ("", "K", "M", "B"):
            if abs(n) < 1000:
                return f"{n:.3g}{unit}"
            n /= 1000
        return f"{n:.3g}T"

    return [
        f"{clock(i)[5:].replace('-', '/')} [INFO|DP=0|PP=0|TP=0|ip-26-0-1]: iteration: {i + 1} / {len(loss)} | consumed_tokens: {human((i + 1) * 2097152)} | elapsed_time_per_iteration_ms: {human(2411 + i % 9)} | tokens_per_sec: {human(871e3)} | tokens_per_sec_per_gpu: {human(13.6e3)} | global_batch_size: {human(1024)} | lm_loss: {v:.3g} | lr: {min(3e-4, 3e-6 * (i + 1)):.3g} | model_tflops_per_gpu: 211 | hardware_tflops_per_gpu: 211 | grad_norm: {norm[i]:.3g}"
        for i, v in enumerate(loss)
    ]


def speechbrain(train: Loss, valid: Loss) -> list[str]:
    return [
        f"epoch: {e + 1}, lr: {1e-3 * 0.97**e:.2e}, steps: {(e + 1) * 812} - train loss: {v:.2e} - valid loss: {valid[e]:.2e}, valid ACC: {min(0.9, e / 40):.2e}"
        for e, v in enumerate(train)
    ]


def wenet(loss: Loss, rank: int = 0) -> list[str]:
    return [
        f"{clock(i, 20)},{i % 900 + 100} DEBUG TRAIN | steps/sec 4.1| Batch {i // 40}/{i % 40 * 100} loss {v:.6f} loss_att {v * 0.9:.6f} loss_ctc {v * 1.2:.6f} th_accuracy 0.412 lr {min(1e-3, 1e-6 * (i + 1) * 10):.8f} rank {rank}"
        for i, v in enumerate(loss)
    ]


def skorch(train: Loss, valid: Loss) -> list[str]:
    out = [
        "  epoch    train_loss    valid_acc    valid_loss     dur",
        "-------  ------------  -----------  ------------  ------",
    ]
    return out + [
        f"{e + 1:7d}        \x1b[36m{v:.4f}\x1b[0m       \x1b[32m{0.5 + e / 100:.4f}\x1b[0m        \x1b[35m{valid[e]:.4f}\x1b[0m  0.3121"
        for e, v in enumerate(train)
    ]


def stylegan_stats(gen: Loss, dis: Loss) -> list[str]:
    return [
        json.dumps(
            {
                "Loss/scores/fake": {"num": 4096, "mean": -0.4, "std": 0.7},
                "Loss/G/loss": {"num": 4096, "mean": g, "std": 0.3},
                "Loss/D/loss": {"num": 4096, "mean": d, "std": 0.2},
                "Progress/tick": {"num": 1, "mean": float(i), "std": 0.0},
                "Progress/kimg": {"num": 1, "mean": 4.0 * i, "std": 0.0},
                "Resources/cpu_mem_gb": {"num": 1, "mean": 4.51, "std": 0.0},
                "timestamp": 1741687200.0 + 121.2 * i,
            }
        )
        for i, (g, d) in enumerate(zip(gen, dis, strict=True))
    ]


def allennlp(d: Path, train: Loss, valid: Loss) -> Path:
    for e, v in enumerate(train):
        d.mkdir(parents=True, exist_ok=True)
        (d / f"metrics_epoch_{e}.json").write_text(
            json.dumps(
                {
                    "best_epoch": e,
                    "epoch": e,
                    "training_duration": f"0:{e:02d}:12.121212",
                    "training_accuracy": 0.5 + e / 100,
                    "training_loss": v,
                    "validation_accuracy": 0.5 + e / 110,
                    "validation_loss": valid[e],
                },
                indent=2,
            )
        )
    return d
