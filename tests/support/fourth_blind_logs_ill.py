"""The ill half of the fourth blind set: what a person sees in the curve, and how the log ends."""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import gzip
import math
import random
from pathlib import Path

from support.external_log_simulators import (
    NAN,
    around,
    cosine,
    falling,
    linear,
    lost_from,
    norms,
)
from support.external_log_writers import clock, hf_console, hf_rows, hf_state, save, torchtitan
from support.external_log_writers import tfevents as tensorboard
from support.fourth_blind_logs import (
    absl,
    axolotl,
    case,
    detectron2_console,
    espnet,
    fairseq_text,
    keras3,
    llama_recipes,
    loguru,
    long_csv,
    mmdet,
    nanochat,
    nemo,
    openclip,
    structlog,
    timm_csv,
    wandb_history,
)
from support.second_blind_logs import (
    ENDED,
    csv,
    grow,
    jsonl,
    plain,
    rise_to,
    swinging,
    trackio_db,
)
from support.third_blind_logs import mlflow_folder, text, wandb, yolo

LEAK = ("HD801", "HD802")
DIVERGED = ("HD104", "HD403", "HD103")
STALLED = ("HD105", "HD404")


# The loss.


@case("findings", codes=("HD101",))
def nanochat_nan(d: Path) -> Path:
    return save(d / "base_train.log", nanochat(lost_from(falling(700, 11.1, 3.4, 601, 0.015), 431)))


@case("findings", codes=("HD102", "HD201", "HD101"))
def axolotl_zero_loss_nan_norm(d: Path) -> Path:
    loss, norm = falling(400, 1.5, 1.05, 602, 0.07), norms(400, 602, 0.4)
    return save(
        d / "axolotl.log", axolotl([*loss[:150], *[0.0] * 250], [*norm[:150], *[NAN] * 250])
    )


@case("findings")
def loss_exactly_zero_from_a_step(d: Path) -> Path:
    loss = falling(500, 2.9, 1.1, 603, 0.05)
    return save(
        d / "t.log",
        plain(
            [*loss[:220], *[0.0] * 280], 1, lambda i: f" | grad_norm {0.0 if i >= 220 else 1.3:.4f}"
        ),
    )


@case("findings", codes=STALLED)
def openclip_at_ln_batch(d: Path) -> Path:
    return save(d / "out.log", openclip(around(300, math.log(4096), 604, 0.0004)))


@case("findings", codes=("HD101",))
def timm_nan(d: Path) -> Path:
    train = lost_from(falling(90, 6.7, 2.6, 605, 0.006), 41)
    return timm_csv(d / "summary.csv", train, train)


@case("findings", codes=DIVERGED)
def espnet_diverges_late(d: Path) -> Path:
    loss = rise_to(falling(300, 180, 21, 606, 0.03), 180, 200, 110, 606, 0.03)
    return save(d / "train.log", espnet(loss, norms(300, 606, 28)))


@case("findings", codes=STALLED)
def absl_at_ln_thousand(d: Path) -> Path:
    return save(d / "train.log", absl(around(300, math.log(1000), 607, 0.0008)))


@case("findings", codes=("HD101",))
def keras3_nan(d: Path) -> Path:
    loss = falling(30, 1.7, 0.5, 608, 0.01, 0.3)
    loss[6:] = [NAN] * 24
    return text(d / "keras.txt", keras3(loss, loss))


@case("findings", codes=("HD202",))
def mmdet_norm_creeps_up(d: Path) -> Path:
    norm = [v * 1.02 ** max(0, i - 100) for i, v in enumerate(norms(400, 609, 4, 2))]
    return save(d / "a.log", mmdet(falling(400, 2.6, 0.6, 609, 0.03), norm))


@case("findings", codes=("HD115",))
def loguru_period_two(d: Path) -> Path:
    return save(
        d / "train.json", loguru([*falling(60, 2.9, 1.1, 610, 0.04), *swinging(340, 1.1, 2.8, 610)])
    )


@case("findings", codes=(*DIVERGED, "HD115"))
def jsonl_slow_rise_from_a_quarter(d: Path) -> Path:
    rng = random.Random(611)
    first = falling(300, 2.6, 0.8, 611, 0.04)
    rest = [first[-1] * (1 + 1.3 * i / 900) * math.exp(rng.gauss(0, 0.04)) for i in range(900)]
    return jsonl(d / "m.jsonl", {"loss": [*first, *rest], "lr": [1e-3] * 1200}, 3)


@case("findings", codes=(*STALLED, "HD405"))
def hf_state_binary_chance(d: Path) -> Path:
    loss = around(1200, math.log(2), 612, 0.012)
    return hf_state(
        d / "trainer_state.json",
        hf_rows(loss, norms(1200, 612, 0.8), linear(1200, 5e-5, 50), 10),
        10,
        1200,
    )


@case("findings", codes=(*DIVERGED, "HD413"))
def loss_only_rises(d: Path) -> Path:
    rng = random.Random(613)
    loss = [2.3 + 0.012 * i + rng.gauss(0, 0.05) for i in range(700)]
    return csv(d / "log.csv", {"loss": loss, "lr": [3e-4] * 700})


@case("findings", codes=("HD106",))
def console_term_at_zero(d: Path) -> Path:
    main = falling(900, 2.4, 0.7, 614, 0.04)
    return save(
        d / "train.log",
        [
            f"[{clock(i)}] it {i:06d} loss={v:.4f} loss_ce={v:.4f} loss_aux=0.0000 lr=2.0e-04"
            for i, v in enumerate(main)
        ],
    )


@case("findings", codes=("HD101", *DIVERGED))
def loss_explodes_to_inf(d: Path) -> Path:
    loss = [*falling(120, 2.4, 1.1, 615, 0.03), *[1.2 * 3.0**i for i in range(60)]]
    loss += [math.inf, *[NAN] * 60]
    return csv(d / "log.csv", {"train/loss": loss})


@case("findings", codes=("HD101",))
def tensorboard_val_nan_only(d: Path) -> Path:
    loss = falling(2000, 3.0, 0.9, 616, 0.03)
    return tensorboard(
        d / "events.out.tfevents.1.h.1.0",
        {
            "loss/train": [(s, loss[s]) for s in range(0, 2000, 10)],
            "loss/val": [(s, NAN if s > 900 else loss[s]) for s in range(99, 2000, 100)],
        },
    )


@case("findings", codes=(*STALLED, *DIVERGED))
def falls_then_stuck_at_ln_ten(d: Path) -> Path:
    loss = [*falling(300, 2.3, 1.4, 617, 0.03), *[math.log(10)] * 500]
    return csv(d / "log.csv", {"loss": loss, "lr": [0.1] * 800}, 2)


@case("findings", codes=("HD407", "HD706", "HD417", "HD406", *DIVERGED))
def resume_starts_from_scratch(d: Path) -> Path:
    out = plain(falling(600, 10.8, 3.0, 618, 0.02), 1, lambda i: " | lr 3.0e-04")
    out += ["Resuming from checkpoint ckpt/step600.pt"]
    again = falling(300, 10.8, 5.5, 619, 0.02, 0.6)
    out += [f"step {601 + i} | loss {v:.4f} | lr 3.0e-04" for i, v in enumerate(again)]
    return save(d / "train.log", out)


@case("findings", "failed", codes=("HD101", *DIVERGED, *ENDED))
def detectron2_floating_point_error(d: Path) -> Path:
    loss = falling(120, 3.4, 0.6, 620, 0.05)
    return save(
        d / "log.txt",
        [
            *detectron2_console([*loss, 3.1e2, 4.4e7]),
            "Traceback (most recent call last):",
            '  File "/opt/detectron2/engine/train_loop.py", line 155, in train',
            "    self.run_step()",
            '  File "/opt/detectron2/engine/train_loop.py", line 462, in _write_metrics',
            "    raise FloatingPointError(",
            "FloatingPointError: Loss became infinite or NaN at iteration=2440!",
            "loss_dict = {'loss_cls': nan, 'loss_box_reg': nan}",
        ],
    )


@case("findings", "failed", codes=("HD313", "HD414", *DIVERGED, *ENDED))
def fairseq_minimum_loss_scale(d: Path) -> Path:
    loss = rise_to(falling(200, 13.1, 4.6, 621, 0.02), 170, 180, 12.4, 621)
    lines = fairseq_text(loss, norms(200, 621))
    lines += [
        f"{clock(2400 + i)} | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {128 / 2 ** (i + 1)}"
        for i in range(20)
    ]
    lines += [
        "Traceback (most recent call last):",
        '  File "/opt/fairseq/optim/dynamic_loss_scaler.py", line 61, in check_overflow',
        "    raise FloatingPointError(",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.",
    ]
    return save(d / "train.log", lines)


@case("findings", codes=("HD101",))
def llama_recipes_nan(d: Path) -> Path:
    return text(d / "ft.log", llama_recipes(lost_from(falling(400, 1.9, 1.2, 622, 0.06), 251), 200))


@case("findings", codes=("HD101",))
def yolo_val_inf(d: Path) -> Path:
    val = falling(80, 1.8, 1.0, 623, 0.02)
    val[55:] = [math.inf] * 25
    return yolo(
        d / "results.csv", falling(80, 1.9, 0.8, 623, 0.01), falling(80, 1.5, 0.95, 624, 0.005), val
    )


@case("findings", codes=("HD205", "HD203", "HD105", "HD204"))
def hf_state_norm_zero(d: Path) -> Path:
    return hf_state(
        d / "trainer_state.json",
        hf_rows(around(800, 2.61, 625, 0.02), [0.0] * 800, linear(800, 5e-5, 20), 10),
        10,
        800,
    )


@case("findings", codes=("HD101",))
def tracker_export_nan(d: Path) -> Path:
    return long_csv(
        d / "metrics.csv",
        {"loss": lost_from(falling(500, 2.3, 0.4, 626, 0.05), 310), "lr": cosine(500, 1e-3)},
    )


@case("findings", codes=DIVERGED)
def timm_ends_near_chance(d: Path) -> Path:
    train = rise_to(falling(100, 6.7, 2.2, 627, 0.006), 60, 64, 6.5, 627, 0.005)
    return timm_csv(d / "summary.csv", train, train)


# Memory, speed, learning rate.


@case("findings", codes=LEAK)
def csv_rss_mb(d: Path) -> Path:
    return csv(
        d / "log.csv", {"loss": falling(900, 3, 1, 630), "rss_mb": grow(900, 3100, 29800, 630)}, 3
    )


@case("findings", codes=LEAK)
def jsonl_vram_used_gib(d: Path) -> Path:
    return jsonl(
        d / "m.jsonl",
        {"loss": falling(900, 3, 1, 631), "mem/vram_used_gib": grow(900, 18.2, 77.0, 631)},
        3,
    )


@case("findings", codes=LEAK)
def wandb_gpu_mem_percent(d: Path) -> Path:
    return wandb(
        d / "wandb/offline-run-20250311_100000-z9y8x7w6/run-z9y8x7w6.wandb",
        {"loss": falling(600, 3, 1, 632), "gpu0.mem%": grow(600, 22, 97, 632)},
    )


@case("findings", codes=LEAK)
def structlog_rss_bytes(d: Path) -> Path:
    rss = grow(500, 3.2e9, 2.7e10, 633)
    loss = falling(500, 3, 1, 633)
    return save(
        d / "t.jsonl", structlog([{"loss": v, "process_rss": rss[i]} for i, v in enumerate(loss)])
    )


@case("findings", codes=LEAK)
def torchtitan_memory_grows(d: Path) -> Path:
    return save(
        d / "titan.log",
        torchtitan(
            falling(1000, 12.2, 3.6, 634, 0.015), norms(1000, 634), 10, grow(1000, 31, 76, 634)
        ),
    )


@case("findings", codes=LEAK)
def axolotl_memory_grows(d: Path) -> Path:
    return save(
        d / "axolotl.log",
        axolotl(falling(400, 1.5, 1.05, 635, 0.07), norms(400, 635, 0.4), grow(400, 17, 71, 635)),
    )


@case("findings", codes=LEAK)
def console_ram_in_stairs(d: Path) -> Path:
    ram = [12.0 + 4.1 * (i // 100) for i in range(1200)]
    return save(
        d / "run.log",
        plain(falling(1200, 3, 1, 636), 4, lambda i: f" | RAM {ram[i]:.1f}GB | GPU 21.3GB"),
    )


@case("findings", codes=("HD804",))
def structlog_throughput_halves(d: Path) -> Path:
    rng = random.Random(637)
    rate = [(9100 if i < 220 else 4300) * math.exp(rng.gauss(0, 0.02)) for i in range(500)]
    loss = falling(500, 3, 1, 637)
    return save(
        d / "t.jsonl",
        structlog([{"loss": v, "samples_per_second": rate[i]} for i, v in enumerate(loss)]),
    )


@case("findings", codes=("HD804",))
def nanochat_slower_and_slower(d: Path) -> Path:
    return save(
        d / "base_train.log",
        nanochat(falling(900, 11.1, 3.2, 638, 0.015), lambda i: 400 + 1.9 * i + i % 11),
    )


@case("findings", codes=("HD405",))
def csv_lr_zero_long_before_the_end(d: Path) -> Path:
    rate = [*cosine(300, 3e-4, 20), *[0.0] * 900]
    loss = [*falling(300, 4.0, 2.1, 639, 0.03), *around(900, 2.4, 640, 0.02)]
    return csv(d / "log.csv", {"loss": loss, "learning_rate": rate}, 3)


# How the log ends.


@case("failed", codes=ENDED)
def llama_recipes_cuda_oom(d: Path) -> Path:
    body = llama_recipes(falling(270, 1.9, 1.2, 650, 0.06), 200)
    body += (
        "\n[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/home/u/finetuning.py", line 421, in <module>\n[rank0]:     fire.Fire(main)\n'
        '[rank0]:   File "/home/u/llama_recipes/utils/train_utils.py", line 162, in train\n[rank0]:     loss.backward()\n'
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.12 GiB is free. Process 88 has 77.97 GiB memory in use.\n"
    )
    return text(d / "ft.log", body)


@case("failed", codes=ENDED)
def nemo_srun_out_of_memory(d: Path) -> Path:
    body = nemo(falling(400, 10.9, 4.4, 651, 0.015))
    body += (
        "\nslurmstepd: error: Detected 1 oom_kill event in StepId=88123.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: n14: task 3: Out Of Memory\nsrun: Terminating StepId=88123.0\n"
    )
    return text(d / "slurm-88123.out", body)


@case("failed", codes=ENDED)
def torchrun_exitcode_minus_9(d: Path) -> Path:
    return save(
        d / "job.log",
        [
            *plain(falling(300, 2.3, 0.6, 652, 0.05)),
            "W0311 12:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 80 closing signal SIGTERM",
            "E0311 12:00:01.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 82) of binary: /usr/bin/python3",
        ],
    )


@case("failed", codes=ENDED)
def faulthandler_segfault(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 653, 0.05)),
            "Fatal Python error: Segmentation fault",
            "",
            "Thread 0x00007f1c2d7fa640 (most recent call first):",
            '  File "/usr/lib/python3.11/threading.py", line 324 in wait',
            "",
            "Current thread 0x00007f1cbd5f7740 (most recent call first):",
            '  File "/home/u/data.py", line 31 in __getitem__',
            '  File "/home/u/train.py", line 64 in main',
            '  File "/home/u/train.py", line 99 in <module>',
            "",
            "Extension modules: numpy._core._multiarray_umath, torch._C (total: 21)",
        ],
    )


@case("failed", codes=ENDED)
def nccl_heartbeat_aborts(d: Path) -> Path:
    return save(
        d / "job.log",
        [
            *plain(falling(300, 2.3, 0.6, 654, 0.05)),
            "[rank3]:[F311 13:10:11.118 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 3] [PG ID 0 PG GUID 0(default_pg) Rank 3] Terminating the process after attempting to dump debug info, due to collective timeout or exception.",
            "*** SIGABRT received at time=1741691411 on cpu 12 ***",
            "Aborted (core dumped)",
        ],
    )


@case("failed", codes=ENDED)
def nccl_unhandled_error(d: Path) -> Path:
    return save(
        d / "job.log",
        [
            *plain(falling(300, 2.3, 0.6, 655, 0.05)),
            "[rank1]: Traceback (most recent call last):",
            '[rank1]:   File "/home/u/train.py", line 71, in <module>',
            "[rank1]:     dist.all_reduce(loss)",
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
            "[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.",
        ],
    )


@case("failed", "interrupted")
def slurm_node_fail(d: Path) -> Path:
    return save(
        d / "slurm-5.out",
        [
            *plain(falling(300, 2.3, 0.6, 656, 0.05)),
            "slurmstepd: error: *** JOB 5 ON n3 CANCELLED AT 2025-03-11T13:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        ],
    )


@case("failed", codes=ENDED)
def kubernetes_137(d: Path) -> Path:
    return save(
        d / "pod.log",
        [*plain(falling(300, 2.3, 0.6, 657, 0.05)), "command terminated with exit code 137"],
    )


@case("failed", codes=ENDED)
def ray_out_of_memory(d: Path) -> Path:
    return save(
        d / "ray.log",
        [
            *[
                f"(RayTrainWorker pid=4711, ip=10.0.0.4) step {i} loss {v:.4f}"
                for i, v in enumerate(falling(300, 2.3, 0.6, 658, 0.05))
            ],
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 91, in <module>',
            "    result = trainer.fit()",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            "Memory on the node (IP: 10.0.0.4, ID: 8f3a) where the task was running was 118.41GB / 124.30GB (0.952615), which exceeds the memory usage threshold of 0.95.",
        ],
    )


@case("failed", codes=ENDED)
def numpy_memory_error(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 659, 0.05)),
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 120, in evaluate',
            "    scores = np.concatenate(all_scores)",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 41.2 GiB for an array with shape (172800, 32000) and data type float64",
        ],
    )


@case("failed", codes=ENDED)
def c10_error_terminates(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 660, 0.05)),
            "terminate called after throwing an instance of 'c10::Error'",
            "  what():  CUDA error: an illegal memory access was encountered",
            "Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):",
            "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x98 (0x7f1c in /usr/lib/libc10.so)",
            "frame #1: <unknown function> + 0x1a2 (0x7f1d in /usr/lib/libc10_cuda.so)",
        ],
    )


@case("failed", codes=ENDED)
def collate_error(d: Path) -> Path:
    body = "".join(
        f"\rEpoch 1:  {i // 4:2d}%|{'█' * (i // 40):<10}| {i}/400 [00:{i % 60:02d}<01:10, 7.1it/s, loss={v:.3f}]"
        for i, v in enumerate(falling(150, 2.3, 0.9, 661, 0.05))
    )
    body += (
        "\nTraceback (most recent call last):\n"
        '  File "/home/u/train.py", line 55, in <module>\n    for batch in tqdm(loader):\n'
        '  File "/usr/lib/python3/site-packages/torch/utils/data/_utils/collate.py", line 240, in collate_tensor_fn\n    return torch.stack(batch, 0, out=out)\n'
        "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [1, 224, 224] at entry 5\n"
    )
    return text(d / "nohup.out", body)


@case("failed", codes=ENDED)
def windows_access_violation(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    lines = [
        *plain(falling(300, 2.3, 0.6, 662, 0.05)),
        "",
        "Process finished with exit code -1073741819 (0xC0000005)",
    ]
    (d / "pycharm.log").write_bytes("\r\n".join(lines).encode())
    return d / "pycharm.log"


@case("failed", "interrupted")
def bash_terminated(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 663, 0.05)),
            "./train.sh: line 14:  8812 Terminated              python train.py --config a.yaml",
        ],
    )


@case("failed", codes=ENDED)
def accelerate_launch_called_process_error(d: Path) -> Path:
    rows = hf_rows(falling(300, 2.5, 1.3, 664), norms(300, 664), linear(700, 5e-5, 30), 10)
    return save(
        d / "console.log",
        [
            *hf_console(rows, 700)[:-1],
            "Traceback (most recent call last):",
            '  File "/opt/conda/bin/accelerate", line 8, in <module>',
            "    sys.exit(main())",
            '  File "/opt/conda/lib/python3.11/site-packages/accelerate/commands/launch.py", line 763, in simple_launcher',
            "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)",
            "subprocess.CalledProcessError: Command '['/opt/conda/bin/python', 'train.py']' died with <Signals.SIGKILL: 9>.",
        ],
    )


@case("failed", codes=ENDED)
def gzipped_console_killed(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    lines = [*plain(falling(300, 2.3, 0.6, 665, 0.05)), "Killed"]
    (d / "train.log.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return d / "train.log.gz"


@case("failed", "interrupted")
def slurm_time_limit(d: Path) -> Path:
    return save(
        d / "slurm-7.out",
        [
            *plain(falling(300, 2.3, 0.6, 666, 0.05)),
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "slurmstepd: error: *** STEP 7.0 ON n3 CANCELLED AT 2025-03-12T10:00:09 DUE TO TIME LIMIT ***",
            "srun: error: n3: task 0: Terminated",
        ],
    )


@case("interrupted")
def control_c_twice(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 667, 0.05)),
            "^C",
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 66, in <module>',
            "    loss.backward()",
            "KeyboardInterrupt",
            "^CException ignored in: <module 'threading' from '/usr/lib/python3.11/threading.py'>",
            "KeyboardInterrupt: ",
        ],
    )


@case("failed", codes=(*LEAK, *ENDED))  # corrected: that the memory grew is the cause of the kill
def oom_caught_and_logged(d: Path) -> Path:
    """The kernel's own message, in a console that also takes dmesg."""
    rss = grow(300, 22.0, 61.5, 668)
    return save(
        d / "console.log",
        [
            *plain(falling(300, 2.3, 0.6, 668, 0.05), 1, lambda i: f" | rss {rss[i]:.2f} GB"),
            "[81231.118] Out of memory: Killed process 4711 (python) total-vm:91823312kB, anon-rss:64881120kB, file-rss:71kB, shmem-rss:0kB",
        ],
    )


# Stores and folders of several runs.


@case("findings", codes=("HD101",), worst="bad", runs={"good": "healthy", "bad": "findings"})
def mlflow_folder_one_nan(d: Path) -> Path:
    mlflow_folder(d, "good", {"loss": falling(300, 2.3, 0.6, 670, 0.04)})
    bad = lost_from(falling(300, 2.3, 0.6, 671, 0.04), 151)
    return mlflow_folder(d, "bad", {"loss": bad}) / "mlruns"


@case("findings", codes=LEAK, worst="cached", runs={"plain": "healthy", "cached": "findings"})
def trackio_one_leaks(d: Path) -> Path:
    return trackio_db(
        d / "p.db",
        {
            "plain": {"loss": falling(400, 3, 1, 672), "sys/ram_gb": around(400, 21.1, 672, 0.004)},
            "cached": {"loss": falling(400, 3, 1, 673), "sys/ram_gb": grow(400, 21.1, 96.0, 673)},
        },
    )


@case(
    "findings",
    codes=DIVERGED,
    worst="lr1e-2",
    runs={"lr1e-2": "findings", "lr1e-3": "healthy", "lr1e-4": "healthy"},
)
def tensorboard_folder_one_diverges(d: Path) -> Path:
    for i, name in enumerate(("lr1e-2", "lr1e-3", "lr1e-4")):
        loss = falling(1500, 3.0, 0.8, 674 + i, 0.04)
        if i == 0:
            loss = rise_to(loss, 600, 660, 2.9, 674)
        tensorboard(
            d / f"logs/{name}/events.out.tfevents.17416872{i}.n1.88.0",
            {"train_loss": [(s, loss[s]) for s in range(0, 1500, 5)]},
        )
    return d / "logs"


@case("findings", codes=("HD101",), worst="version_2", runs={"version_0": "healthy"})
def lightning_versions_last_nan(d: Path) -> Path:
    for v in range(3):
        loss = falling(300, 2.3, 0.5, 680 + v, 0.05)
        loss = lost_from(loss, 120) if v == 2 else loss
        rows = ["epoch,step,train_loss,val_loss"]
        for i, value in enumerate(loss):
            rows.append(f"{i // 50},{i * 10},{value:.5f},")
            if i % 50 == 49:
                rows.append(f"{i // 50},{i * 10},,{value * 1.1:.5f}")
        save(d / f"lightning_logs/version_{v}/metrics.csv", rows)
    return d / "lightning_logs"


@case("findings", codes=STALLED, worst="b2c3", runs={"a1b2": "healthy", "b2c3": "findings"})
def wandb_folder_one_at_chance(d: Path) -> Path:
    losses = {
        "a1b2": falling(500, 4.6, 1.1, 684, 0.04),
        "b2c3": around(500, math.log(100), 685, 0.004),
    }
    for name, loss in losses.items():
        wandb(d / f"wandb/offline-run-20250311_100000-{name}/run-{name}.wandb", {"loss": loss})
    return d / "wandb"


@case(
    "failed",
    codes=ENDED,
    worst="fold3",
    runs={"fold1": "healthy", "fold2": "healthy", "fold3": "failed"},
)
def folds_last_segfaults(d: Path) -> Path:
    for fold in (1, 2, 3):
        lines = plain(falling(250, 2.3, 0.6, 686 + fold, 0.04))
        if fold == 3:
            lines = [*lines[:120], "Segmentation fault (core dumped)"]
        save(d / f"cv/fold{fold}.log", lines)
    return d / "cv"


@case("findings", codes=("HD101",), worst="nan")
def history_files_of_two_runs(d: Path) -> Path:
    for name, loss in (
        ("fine", falling(400, 2.4, 0.7, 690, 0.05)),
        ("nan", lost_from(falling(400, 2.4, 0.7, 691, 0.05), 222)),
    ):
        save(d / f"exports/{name}.jsonl", wandb_history({"train/loss": loss}, {}))
    return d / "exports"
