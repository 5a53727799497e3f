"""The ill half of the third blind set: what a person sees in the curve, and how the log ends."""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import gzip
import json
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
    rising,
)
from support.external_log_writers import clock, hf_console, hf_rows, hf_state, megatron, save
from support.external_log_writers import tfevents as tensorboard
from support.second_blind_logs import (
    ENDED,
    csv,
    grow,
    jsonl,
    nanogpt,
    plain,
    rise_to,
    swinging,
    trackio_db,
)
from support.third_blind_logs import (
    case,
    deepspeed,
    detectron2,
    fairseq_json,
    fastai,
    keras_csv,
    lightning_bars,
    mlflow_folder,
    mlflow_store,
    mmengine,
    sb3,
    text,
    torchtune,
    wandb,
    yolo,
)

LEAK = ("HD801", "HD802")


# The loss.


@case("findings", codes=("HD104", "HD403"))
def nanogpt_diverges_past_the_middle(d: Path) -> Path:
    loss = rise_to(falling(2000, 10.8, 3.0, 401, 0.015), 1200, 1300, 7.4, 401)
    return save(d / "train.log", nanogpt(loss, 10))


@case("findings", codes=("HD105",))
def lightning_bar_at_ln_ten(d: Path) -> Path:
    return text(d / "out.txt", lightning_bars(around(800, math.log(10), 402, 0.01), 100))


@case("findings", codes=("HD115",))
def wandb_period_two(d: Path) -> Path:
    loss = [*falling(80, 2.3, 1.0, 403, 0.03), *swinging(420, 1.0, 2.9, 403)]
    return wandb(
        d / "wandb/offline-run-20250311_100000-ab12cd34/run-ab12cd34.wandb", {"train/loss": loss}
    )


@case("findings", codes=("HD101",))
def fairseq_json_nan(d: Path) -> Path:
    return save(
        d / "train.log",
        fairseq_json(lost_from(falling(120, 13.0, 4.2, 404, 0.02), 71), norms(120, 404)),
    )


@case("findings", codes=("HD104", "HD103", "HD403"))
def mmengine_jump_and_no_return(d: Path) -> Path:
    return mmengine(
        d / "vis_data/scalars.json",
        rise_to(falling(160, 2.4, 0.6, 405, 0.04), 90, 91, 2.0, 405, 0.04),
    )


@case("findings", codes=("HD104", "HD403"))
def tensorboard_ends_high(d: Path) -> Path:
    loss = rise_to(falling(3000, 3.0, 0.9, 406, 0.03), 1800, 2200, 1.9, 406, 0.03)
    return tensorboard(
        d / "events.out.tfevents.1.h.1.0",
        {"train/loss_step": [(s, loss[s]) for s in range(0, 3000, 10)]},
    )


@case("findings", codes=("HD104", "HD403"))
def tsv_objective_diverges(d: Path) -> Path:
    loss = rising(falling(600, 4.0, 1.2, 407, 0.03), 330, 0.05, 12.0)
    rows = ["Iter\tObjective\tEta"] + [f"{i}\t{v:.5f}\t0.1" for i, v in enumerate(loss)]
    return save(d / "history.tsv", rows)


@case("findings", codes=("HD105",))
def detectron2_constant(d: Path) -> Path:
    return detectron2(d / "metrics.json", [4.605170185988092] * 200, [0.0] * 200)


@case("findings", codes=("HD106",))
def yolo_component_at_zero(d: Path) -> Path:
    box = falling(80, 1.9, 0.8, 409, 0.01)
    return yolo(d / "results.csv", box, [0.0] * 80, falling(80, 1.8, 1.0, 409, 0.02))


@case("findings", codes=("HD101",))
def ansi_inf_then_nan(d: Path) -> Path:
    loss = falling(300, 2.3, 0.9, 410, 0.05)
    loss[180:] = [math.inf, *[NAN] * 119]
    lines = [
        f"\x1b[32m{clock(i)}\x1b[0m | \x1b[1mINFO    \x1b[0m | \x1b[36mtrain\x1b[0m:\x1b[36mmain\x1b[0m:\x1b[36m71\x1b[0m - \x1b[1mstep={i} loss={v:.4f}\x1b[0m"
        for i, v in enumerate(loss)
    ]
    return save(d / "loguru.log", lines)


@case("findings", codes=("HD101",))
def one_of_four_ranks_nan(d: Path) -> Path:
    ranks = [falling(250, 5.0, 2.0, 411 + r, 0.06) for r in range(4)]
    ranks[3] = lost_from(ranks[3], 140)
    lines = [
        f"{r}: step {i} loss {ranks[r][i]:.4f} lr 3.0e-04" for i in range(250) for r in range(4)
    ]
    return save(d / "job.out", lines)


@case("findings", codes=("HD101",))
def gzipped_nan(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    loss = lost_from(falling(400, 10.8, 4.0, 415, 0.02), 210)
    (d / "train.log.gz").write_bytes(gzip.compress("\n".join(nanogpt(loss)).encode(), mtime=0))
    return d / "train.log.gz"


@case("findings", codes=("HD101",))
def fastai_valid_nan(d: Path) -> Path:
    loss = falling(14, 1.1, 0.25, 416, 0.02, 0.3)
    return save(d / "learn.txt", fastai(loss, [v if e < 6 else NAN for e, v in enumerate(loss)]))


@case("findings", codes=("HD102", "HD201"))
def hf_console_zero_and_nan(d: Path) -> Path:
    rows = hf_rows(
        lost_from(falling(700, 2.5, 1.3, 417), 391),
        lost_from(norms(700, 417), 391),
        linear(700, 5e-5, 30),
        10,
    )
    return save(d / "nohup.out", hf_console(rows, 700))


@case("findings", codes=("HD101",))
def sb3_nan(d: Path) -> Path:
    n = 120
    return save(
        d / "sb3.log",
        sb3(
            {
                "rollout/ep_rew_mean": [20.0 + i for i in range(n)],
                "train/loss": lost_from(around(n, 8, 418, 0.3), 71),
            }
        ),
    )


@case("findings", "failed")
def gan_discriminator_wins(d: Path) -> Path:
    rng = random.Random(419)
    n = 600
    dis = [max(0.0, 1.2 * math.exp(-i / 60)) * math.exp(rng.gauss(0, 0.1)) for i in range(n)]
    gen = [1.0 + 17 * (1 - math.exp(-i / 150)) + rng.gauss(0, 0.5) for i in range(n)]
    lines = [
        f"[{i}/600] Loss_D: {dis[i]:.4f} Loss_G: {gen[i]:.4f} D(x): 0.99 D(G(z)): 0.00"
        for i in range(n)
    ]
    return save(d / "dcgan.log", lines)


@case("findings", "healthy", says="validation")
def keras_overfits(d: Path) -> Path:
    loss = falling(60, 1.8, 0.02, 420, 0.02, 0.1)
    val = [max(v * 1.1, 0.62) if e < 12 else 0.62 + 0.035 * (e - 11) for e, v in enumerate(loss)]
    return keras_csv(d / "training.csv", loss, val)


@case("findings", "healthy", says="validation")
def hf_state_overfits(d: Path) -> Path:
    rows = hf_rows(
        falling(1200, 2.4, 0.05, 421, 0.04, 0.05), norms(1200, 421), linear(1200, 5e-5), 10
    )
    out = []
    for row in rows:
        out.append(row)
        if row["step"] % 100 == 0:
            e = row["step"] // 100
            out.append(
                {
                    "epoch": float(e),
                    "eval_loss": 1.1 - 0.1 * e if e < 4 else 0.8 + 0.14 * (e - 4),
                    "eval_runtime": 4.0,
                    "step": row["step"],
                }
            )
    return hf_state(d / "trainer_state.json", out, 10, 1200)


# Memory, speed, learning rate, gradients.


@case("findings", codes=LEAK)
def csv_ram_used_pct(d: Path) -> Path:
    return csv(
        d / "log.csv", {"loss": falling(800, 3, 1, 430), "ram_used_pct": grow(800, 31, 96, 430)}, 4
    )


@case("findings", codes=LEAK)
def console_peak_rss_mib(d: Path) -> Path:
    rss = grow(600, 2100, 17800, 431)
    return save(
        d / "run.log", plain(falling(600, 3, 1, 431), 2, lambda i: f" | peak RSS {rss[i]:.0f} MiB")
    )


@case("findings", codes=LEAK)
def mmengine_memory_column(d: Path) -> Path:
    return mmengine(
        d / "vis_data/scalars.json", falling(160, 2.4, 0.6, 432, 0.04), grow(160, 5400, 23100, 432)
    )


@case("findings", codes=LEAK)
def torchtune_peak_memory_active(d: Path) -> Path:
    return save(
        d / "log_1741687200.txt",
        torchtune(falling(250, 1.6, 0.9, 433, 0.08), grow(250, 14, 61, 433)),
    )


@case("findings", codes=LEAK)
def mlflow_system_metric_percent(d: Path) -> Path:
    columns = {
        "loss": falling(500, 3, 1, 434),
        "system/system_memory_usage_percentage": grow(500, 22.0, 91.0, 434),
    }
    return mlflow_store(d / "mlflow.db", {"only": ("FINISHED", columns)})


@case("findings", codes=("HD804",))
def nanogpt_slower_and_slower(d: Path) -> Path:
    loss = falling(1000, 10.8, 4.0, 435, 0.02)
    lines = [
        f"iter {i}: loss {v:.4f}, time {300 + 3.2 * i + i % 9:.2f}ms, mfu 21.40%"
        for i, v in enumerate(loss)
    ]
    return save(d / "train.log", lines)


@case("findings", codes=("HD804",))
def jsonl_throughput_collapses(d: Path) -> Path:
    rate = [12000 / (1 + max(0, i - 100) / 60) for i in range(800)]
    return jsonl(d / "m.jsonl", {"loss": falling(800, 3, 1, 436), "tokens_per_sec": rate}, 2)


@case("findings", codes=("HD405",))
def hf_state_rate_zero_after_a_fifth(d: Path) -> Path:
    rate = [*linear(200, 5e-5, 20), *[0.0] * 800]
    loss = [*falling(200, 2.4, 1.6, 437), *around(800, 1.8, 438, 0.03)]
    return hf_state(d / "trainer_state.json", hf_rows(loss, norms(1000, 437), rate, 10), 10, 1000)


@case("findings", codes=("HD105", "HD404", "HD405"))
def csv_rate_zero_throughout(d: Path) -> Path:
    return csv(d / "log.csv", {"loss": around(600, 2.31, 439, 0.01), "lr": [0.0] * 600})


@case("findings", codes=("HD202",))
def megatron_norm_grows(d: Path) -> Path:
    norm = [n * 1.004 ** max(0, i - 600) for i, n in enumerate(norms(2000, 440, 0.5, 5))]
    return save(
        d / "log.txt",
        megatron(falling(2000, 10.5, 3.2, 440, 0.01), norm, cosine(2000, 3e-4, 100), 10, 2000),
    )


@case("findings", "failed", codes=("HD313", "HD414", *ENDED))
def deepspeed_scale_at_its_minimum(d: Path) -> Path:
    lines = deepspeed(falling(60, 9.0, 5.0, 441, 0.02), [3e-4] * 60)
    for i in range(17):
        lines.append(
            f"[{clock(700 + i)},001] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
            f" Attempted loss scale: {65536 >> i}, reducing to {max(65536 >> (i + 1), 1)}"
        )
    lines += [
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 140, in <module>',
        "    engine.step()",
        '  File "/usr/lib/python3/site-packages/deepspeed/runtime/fp16/loss_scaler.py", line 175, in update_scale',
        '    raise Exception("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")',
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ]
    return save(d / "ds.log", lines)


# How the log ends.


@case("failed", codes=ENDED)
def bars_then_shell_says_killed(d: Path) -> Path:
    bars = lightning_bars(falling(450, 2.3, 0.6, 450, 0.06), 100)
    return text(
        d / "nohup.out",
        bars + "\n./run.sh: line 3: 12345 Killed                  python train.py --lr 1e-3\n",
    )


@case("failed", codes=ENDED)
def torchtune_oom_utf16(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    lines = torchtune(falling(120, 1.6, 0.9, 451, 0.08))
    lines += [
        "Traceback (most recent call last):",
        '  File "C:\\work\\recipe.py", line 212, in train',
        "    loss.backward()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.99 GiB of which 0 bytes is free.",
    ]
    (d / "log.txt").write_bytes(b"\xff\xfe" + "\r\n".join(lines).encode("utf-16-le"))
    return d / "log.txt"


@case("failed", codes=ENDED)
def lightning_value_error(d: Path) -> Path:
    content = lightning_bars(falling(250, 2.3, 0.6, 452, 0.06), 100) + "\n"
    content += "Traceback (most recent call last):\n"
    content += '  File "/home/u/train.py", line 88, in <module>\n    trainer.fit(model, data)\n'
    content += '  File "/home/u/data.py", line 41, in __getitem__\n    return self.table[index]\n'
    content += "IndexError: index 50000 is out of bounds for axis 0 with size 50000\n"
    return text(
        d / "out.log", content + "\rEpoch 2:  50%|█████     | 50/100 [00:03<00:03, 17.3it/s]"
    )


@case("failed", "interrupted")
def torchelastic_sigterm(d: Path) -> Path:
    lines = plain(falling(300, 2.3, 0.6, 453, 0.05))
    lines += [
        "W0311 12:00:01.118000 4711 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGTERM death signal, shutting down workers",
        "W0311 12:00:01.120000 4711 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4712 closing signal SIGTERM",
        "Traceback (most recent call last):",
        '  File "/opt/conda/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
    ]
    return save(d / "job.log", lines)


@case("failed", codes=ENDED)
def nccl_timeout_of_ranks(d: Path) -> Path:
    ranks = [falling(200, 5.0, 2.0, 454 + r, 0.06) for r in range(2)]
    lines = [f"[rank{r}]: step {i} loss {ranks[r][i]:.4f}" for i in range(200) for r in range(2)]
    lines += [
        "[rank1]:[E311 12:40:11.554 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=8123, OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.",
        "[rank1]:[E311 12:40:11.601 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception",
    ]
    return save(d / "torchrun.log", lines)


@case("failed", "interrupted")
def slurm_time_limit_in_a_bar(d: Path) -> Path:
    bars = lightning_bars(falling(450, 2.3, 0.6, 456, 0.06), 100)
    return text(
        d / "slurm-9.out",
        bars
        + "\nslurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-03-12T00:00:12 DUE TO TIME LIMIT ***\n",
    )


@case("failed", codes=ENDED)
def disk_full_at_a_save(d: Path) -> Path:
    lines = nanogpt(falling(400, 10.8, 4.0, 457, 0.02), 2)
    lines += [
        "saving checkpoint to out",
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 283, in <module>',
        "    torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt'))",
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598",
        "OSError: [Errno 28] No space left on device",
    ]
    return save(d / "train.log", lines)


@case("failed", codes=ENDED)
def worker_bus_error(d: Path) -> Path:
    lines = plain(falling(220, 2.3, 0.6, 458, 0.05))
    lines += [
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 51, in <module>',
        "    for x, y in loader:",
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    ]
    return save(d / "run.log", lines)


@case("failed", codes=ENDED)
def worker_killed_in_yolo(d: Path) -> Path:
    lines = ["      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"]
    for e, v in enumerate(falling(30, 1.9, 0.9, 459, 0.01)):
        lines.append(
            f"     {e + 1:>3}/100      6.41G     {v:.4f}     {v * 1.3:.4f}     {v * 0.7:.4f}         31        640: 100%|██████████| 80/80 [00:11<00:00,  7.0it/s]"
        )
    lines.append("RuntimeError: DataLoader worker (pid(s) 40113) exited unexpectedly")
    return save(d / "yolo.log", lines)


@case("failed", codes=ENDED)
def third_restart_runs_out_of_memory(d: Path) -> Path:
    loss, out = falling(900, 3.5, 1.1, 460, 0.04), []
    for part in range(3):
        out.append(f"=== attempt {part + 1} ===")
        out += [
            f"step {i} loss {loss[i]:.4f} lr 1.0e-04" for i in range(300 * part, 300 * part + 250)
        ]
        out.append(
            "slurmstepd: error: *** JOB 9 ON n4 CANCELLED AT 2025-03-11T13:00:00 DUE TO PREEMPTION ***"
            if part < 2
            else "slurmstepd: error: Detected 1 oom_kill event in StepId=901.0. Some of the step tasks have been OOM Killed."
        )
    return save(d / "slurm-901.out", out)


@case("failed", codes=ENDED)
def the_same_crash_each_time(d: Path) -> Path:
    loss, out = falling(900, 3.5, 1.1, 461, 0.04), []
    for part in range(3):
        out.append(f"Resuming from checkpoint step {200 * part}")
        out += [
            f"step {i} loss {loss[i]:.4f} lr 1.0e-04" for i in range(200 * part, 200 * part + 230)
        ]
        out += [
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 77, in <module>',
            "    total += batch['labels'].sum()",
            "KeyError: 'labels'",
        ]
    return save(d / "restarts.log", out)


@case("failed", codes=ENDED)
def device_assert_in_hf(d: Path) -> Path:
    rows = hf_rows(falling(300, 2.5, 1.3, 462), norms(300, 462), linear(700, 5e-5, 30), 10)
    lines = hf_console(rows, 700)[:-1]
    lines += [
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [31,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        "Traceback (most recent call last):",
        '  File "/home/u/finetune.py", line 119, in <module>',
        "    trainer.train()",
        "RuntimeError: CUDA error: device-side assert triggered",
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    ]
    return save(d / "console.log", lines)


@case("failed", codes=ENDED)
def torchrun_exit_code_minus_11(d: Path) -> Path:
    lines = plain(falling(220, 2.3, 0.6, 463, 0.05))
    lines += [
        "E0311 12:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -11) local_rank: 1 (pid: 81) of binary: /usr/bin/python3",
        "============================================================",
        "train.py FAILED",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -11 (pid: 81)",
        "  traceback : Signal 11 (SIGSEGV) received by PID 81",
        "============================================================",
    ]
    return save(d / "torchrun.log", lines)


@case("interrupted")
def keyboard_interrupt_in_a_bar(d: Path) -> Path:
    bars = lightning_bars(falling(330, 2.3, 0.6, 464, 0.06), 100)
    bars += "\n^CTraceback (most recent call last):\n"
    bars += '  File "/home/u/train.py", line 88, in <module>\n    trainer.fit(model, data)\nKeyboardInterrupt\n'
    return text(d / "out.log", bars)


@case("failed", codes=ENDED)
def folder_state_and_killed_console(d: Path) -> Path:
    rows = hf_rows(falling(400, 2.5, 1.3, 465), norms(400, 465), linear(700, 5e-5, 30), 10)
    hf_state(d / "out/checkpoint-300/trainer_state.json", rows[:30], 10, 700, done=False)
    save(
        d / "out/console.log",
        [
            *hf_console(rows, 700)[:-1],
            "/var/spool/slurmd/job1/slurm_script: line 12: 88 Killed  python finetune.py",
        ],
    )
    return d / "out"


# Stores and folders of several runs.


@case(
    "findings",
    codes=("HD101",),
    worst="gamma",
    runs={"alpha": "healthy", "beta": "healthy", "gamma": "findings", "delta": "healthy"},
)
def mlflow_db_third_of_four(d: Path) -> Path:
    runs = {}
    for i, name in enumerate(("alpha", "beta", "gamma", "delta")):
        loss = falling(300, 2.3, 0.6, 470 + i, 0.04)
        runs[name] = ("FINISHED", {"train_loss": lost_from(loss, 200) if name == "gamma" else loss})
    return mlflow_store(d / "mlflow.db", runs)


@case("failed", worst="bad", runs={"good": "healthy", "bad": "failed"})
def mlflow_db_status_failed(d: Path) -> Path:
    loss = falling(300, 2.3, 0.6, 474, 0.04)
    return mlflow_store(
        d / "mlflow.db",
        {
            "bad": ("FAILED", {"loss": loss[:140]}),
            "good": ("FINISHED", {"loss": falling(300, 2.3, 0.6, 475, 0.04)}),
        },
    )


@case("interrupted", worst="b2", runs={"a1": "healthy", "b2": "interrupted"})
def mlflow_folder_status_killed(d: Path) -> Path:
    mlflow_folder(d, "a1", {"loss": falling(300, 2.3, 0.6, 476, 0.04)})
    return mlflow_folder(d, "b2", {"loss": falling(120, 2.3, 0.9, 477, 0.04)}, status=5) / "mlruns"


@case("failed", "interrupted", worst="bbbb", runs={"aaaa": "healthy"})
def wandb_folder_one_exited_with_one(d: Path) -> Path:
    for name, code, seed in (("aaaa1111", 0, 478), ("bbbb2222", 1, 479)):
        wandb(
            d / f"wandb/offline-run-20250311_100000-{name}/run-{name}.wandb",
            {"loss": falling(300, 2.3, 0.6, seed, 0.04)},
            code,
        )
    return d / "wandb"


@case(
    "findings",
    codes=("HD104", "HD403"),
    worst="lr-0.1",
    runs={"lr-0.01": "healthy", "lr-0.1": "findings", "lr-0.001": "healthy"},
)
def trackio_one_of_three_diverges(d: Path) -> Path:
    runs = {
        f"lr-{lr}": {"loss": falling(400, 2.3, 0.5, 480 + i, 0.04)}
        for i, lr in enumerate(("0.01", "0.1", "0.001"))
    }
    runs["lr-0.1"] = {"loss": rise_to(falling(400, 2.3, 0.9, 483, 0.04), 180, 220, 2.6, 483)}
    return trackio_db(d / "project.db", runs)


@case(
    "failed",
    codes=ENDED,
    worst="seed2",
    runs={"seed0": "healthy", "seed1": "findings", "seed2": "failed"},
)
def console_folder_failed_before_findings(d: Path) -> Path:
    for i in range(3):
        loss = falling(300, 2.3, 0.6, 484 + i, 0.04)
        lines = plain(lost_from(loss, 150) if i == 1 else loss)
        if i == 2:
            lines += ["Segmentation fault (core dumped)"]
        save(d / f"runs/seed{i}/train.log", lines)
    return d / "runs"


@case("findings", codes=LEAK, worst="leaky", runs={"steady": "healthy", "leaky": "findings"})
def jsonl_folder_one_leaks(d: Path) -> Path:
    jsonl(
        d / "runs/steady.jsonl",
        {"loss": falling(500, 3, 1, 487), "host_ram_gb": around(500, 21.0, 487, 0.004)},
    )
    jsonl(
        d / "runs/leaky.jsonl",
        {"loss": falling(500, 3, 1, 488), "host_ram_gb": grow(500, 20.0, 118.0, 488)},
    )
    return d / "runs"


@case("findings", codes=("HD101",), worst="b")
def json_array_with_null(d: Path) -> Path:
    rows = [{"epoch": e, "loss": v} for e, v in enumerate(falling(60, 2.3, 0.6, 489, 0.03))]
    bad = [
        {"epoch": e, "loss": v if e < 31 else "NaN"}
        for e, v in enumerate(falling(60, 2.3, 0.6, 490, 0.03))
    ]
    text(d / "runs/a/history.json", json.dumps(rows))
    text(d / "runs/b/history.json", json.dumps(bad))
    return d / "runs"
