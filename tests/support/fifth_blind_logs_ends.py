"""The fifth blind set: logs that end badly, stores and folders of several runs, and refused files."""

# Lines are as the tools write them.
# ruff: noqa: E501
from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path

from support import fifth_blind_dialects as tool
from support.external_log_simulators import falling, lost_from, norms
from support.external_log_writers import clock, save
from support.external_log_writers import tfevents as tensorboard
from support.fifth_blind_logs import case
from support.fifth_blind_logs_ill import DIVERGED, LEAK, NONFINITE, STALLED
from support.second_blind_logs import ENDED, csv, grow, jsonl, plain, rise_to
from support.third_blind_logs import mlflow_store, text, wandb


@case("failed", codes=ENDED)
def llmc_cuda_error(d: Path) -> Path:
    return save(
        d / "main.log",
        [
            *tool.llmc(falling(300, 11.0, 4.4, 961, 0.012), norms(300, 961)),
            "[CUDA ERROR] at file llmc/matmul.cuh:117:",
            "an illegal memory access was encountered",
        ],
    )


@case("failed", codes=ENDED)
def maxtext_resource_exhausted(d: Path) -> Path:
    return save(
        d / "maxtext.log",
        [
            *tool.maxtext(falling(120, 11.8, 5.1, 962, 0.012)),
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        ],
    )


@case("failed", codes=ENDED)
def kohya_windows_error(d: Path) -> Path:
    body = tool.kohya(falling(500, 0.14, 0.1, 963, 0.02))
    body += (
        '\nTraceback (most recent call last):\n  File "C:\\kohya_ss\\train_network.py", line 1012, in <module>\n    trainer.train(args)\n'
        "RuntimeError: Error(s) in loading state_dict for UNet2DConditionModel\n"
        "subprocess.CalledProcessError: Command '['C:\\\\venv\\\\python.exe', 'train_network.py']' returned non-zero exit status 1.\n"
    )
    return text(d / "kohya.log", body)


@case("failed", codes=ENDED)
def tf_oom_when_allocating(d: Path) -> Path:
    return save(
        d / "tf.log",
        [
            *tool.estimator(falling(200, 2.4, 0.4, 964, 0.06)),
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512,112,112] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        ],
    )


@case("interrupted", "failed")
def kubernetes_evicted(d: Path) -> Path:
    return save(
        d / "pod.log",
        [
            *plain(falling(300, 2.3, 0.6, 965, 0.05)),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 81Mi. Container pytorch was using 61Gi, request is 32Gi",
            "Pod train-0 evicted",
        ],
    )


@case("interrupted", "failed")
def spot_instance_reclaimed(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 966, 0.05)),
            "EC2 spot instance interruption notice received: action terminate at 2025-03-11T12:00:00Z",
            "Received SIGTERM, saving checkpoint",
            "Checkpoint saved to s3://b/last.pt",
        ],
    )


@case("failed", codes=ENDED)
def pbs_killed_for_memory(d: Path) -> Path:
    return save(
        d / "job.o4711",
        [
            *plain(falling(300, 2.3, 0.6, 967, 0.05)),
            "=>> PBS: job killed: mem 68719480kb exceeded limit 67108864kb",
        ],
    )


@case("failed", "interrupted")
def lsf_run_limit(d: Path) -> Path:
    return save(
        d / "lsf.out",
        [
            *plain(falling(300, 2.3, 0.6, 968, 0.05)),
            "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
            "Exited with exit code 140.",
        ],
    )


@case("failed", codes=ENDED)
def mpirun_signal_nine(d: Path) -> Path:
    lines = [
        f"[1,{r}]<stdout>:step {i} loss {v + r / 100:.4f}"
        for i, v in enumerate(falling(200, 2.3, 0.6, 969, 0.05))
        for r in range(2)
    ]
    return save(
        d / "mpi.log",
        [
            *lines,
            "--------------------------------------------------------------------------",
            "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 9 (Killed).",
            "--------------------------------------------------------------------------",
        ],
    )


@case("failed", codes=ENDED)
def sagemaker_execute_user_script_error(d: Path) -> Path:
    return save(
        d / "sm.log",
        [
            *plain(falling(300, 2.3, 0.6, 970, 0.05)),
            "2025-03-11 10:00:00,112 sagemaker-training-toolkit ERROR    ExecuteUserScriptError:",
            "ExitCode 1",
            "ErrorMessage \"KeyError: 'labels'\"",
            'Command "/opt/conda/bin/python3.10 train.py --epochs 3"',
        ],
    )


@case("failed", codes=ENDED)
def rich_traceback_box(d: Path) -> Path:
    box = [
        "╭─────────────────────── Traceback (most recent call last) ────────────────────────╮",
        "│ /home/u/train.py:88 in <module>                                                  │",
        "│                                                                                  │",
        "│   85 for batch in loader:                                                        │",
        "│ ❱ 88     loss = criterion(model(batch[0]), batch[1])                             │",
        "│                                                                                  │",
        "╰──────────────────────────────────────────────────────────────────────────────────╯",
        "IndexError: Target 10 is out of bounds.",
    ]
    return save(d / "train.log", [*plain(falling(300, 2.3, 0.6, 971, 0.05)), *box])


@case("failed", codes=ENDED)
def julia_like_bus_error_of_shell(d: Path) -> Path:
    return save(
        d / "run.log",
        [
            *plain(falling(300, 2.3, 0.6, 972, 0.05)),
            "run.sh: line 4: 88123 Bus error               (core dumped) python train.py --cfg a.yaml",
        ],
    )


@case("failed", codes=ENDED)
def composer_with_error_line_of_the_launcher(d: Path) -> Path:
    return save(
        d / "mpt.log",
        [
            *tool.composer(falling(120, 11.2, 5.3, 973, 0.012)),
            "ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9.",
            "Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.",
        ],
    )


@case("failed", codes=ENDED)
def gzipped_traceback_of_an_assertion(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    lines = [
        *tool.modded(falling(400, 10.8, 4.4, 974, 0.012)),
        "Traceback (most recent call last):",
        '  File "/home/u/train_gpt.py", line 712, in <module>',
        "    assert tokens.max() < 50257",
        "AssertionError",
    ]
    (d / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return d / "a.txt.gz"


@case("interrupted")
def lightning_detected_keyboard_interrupt(d: Path) -> Path:
    return save(
        d / "pl.log",
        [
            *[
                f"Epoch {i // 100}:  {i % 100}%|█| {i % 100}/100 [00:01<00:02, 31.1it/s, v_num=0, train_loss={v:.3f}]"
                for i, v in enumerate(falling(330, 2.3, 0.6, 975, 0.05))
            ],
            "",
            "Detected KeyboardInterrupt, attempting graceful shutdown ...",
        ],
    )


@case("healthy")
def ends_with_words_of_an_old_failure(d: Path) -> Path:
    """A retry of a download failed and was repeated; the run went on to its end."""
    lines = plain(falling(400, 2.3, 0.6, 976, 0.05))
    lines.insert(
        100,
        "WARNING: upload failed: ConnectionResetError(104, 'Connection reset by peer'), retry 1/5",
    )
    return save(
        d / "run.log",
        [*lines, "Training finished in 0:41:12. Exit code: 0. Failed uploads: 0. Errors: 0."],
    )


@case("healthy")
def nccl_debug_and_deprecation_noise(d: Path) -> Path:
    lines = plain(falling(400, 2.3, 0.6, 977, 0.05))
    noise = [
        "n1:88:101 [0] NCCL INFO Channel 00/02 : 0 1 2 3",
        "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
        "[rank0]:W0311 ProcessGroupNCCL.cpp: Guessing device ID based on global rank. This can cause a hang if rank to GPU mapping is heterogeneous.",
    ]
    return save(
        d / "run.log",
        [
            *noise,
            *lines,
            "[rank0]:[W311 10:00:00 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
        ],
    )


# Stores and folders of several runs.


@case("findings", codes=NONFINITE, worst="0b", runs={"0a": "healthy", "0b": "findings"})
def ray_tune_two_trials(d: Path) -> Path:
    good, bad = falling(120, 2.3, 0.5, 981, 0.03), lost_from(falling(120, 2.3, 0.5, 982, 0.03), 50)
    for trial, loss in (("0a", good), ("0b", bad)):
        rows = [f"{v},{1e-3},False,{i + 1},{trial}_00000,{3.1 * i}" for i, v in enumerate(loss)]
        save(
            d / f"exp/train_{trial}/progress.csv",
            ["loss,lr,done,training_iteration,trial_id,time_total_s", *rows],
        )
        save(
            d / f"exp/train_{trial}/result.json",
            [
                json.dumps(
                    {
                        "loss": v,
                        "lr": 1e-3,
                        "done": False,
                        "training_iteration": i + 1,
                        "trial_id": f"{trial}_00000",
                        "time_total_s": 3.1 * i,
                    }
                )
                for i, v in enumerate(loss)
            ],
        )
    return d / "exp"


@case("failed", worst="second", runs={"first": "healthy", "second": "failed"})
def mlflow_store_one_failed(d: Path) -> Path:
    return mlflow_store(
        d / "mlflow.db",
        {
            "first": ("FINISHED", {"loss": falling(300, 2.3, 0.5, 983, 0.04)}),
            "second": ("FAILED", {"loss": falling(120, 2.3, 0.9, 984, 0.04)}),
        },
    )


@case("findings", codes=DIVERGED, worst="high", runs={"low": "healthy", "high": "findings"})
def tensorboard_two_rates(d: Path) -> Path:
    for name, loss in (
        ("low", falling(900, 3.0, 0.8, 985, 0.03)),
        ("high", rise_to(falling(900, 3.0, 1.1, 986, 0.03), 400, 440, 2.9, 986)),
    ):
        tensorboard(
            d / f"tb/{name}/events.out.tfevents.17416872{len(name)}.n1.9.0",
            {"train/loss": [(s, loss[s]) for s in range(0, 900, 3)]},
        )
    return d / "tb"


@case("failed", codes=ENDED)
def wandb_run_folder_with_output_log(d: Path) -> Path:
    """An online run: no .wandb data worth reading but the console log is in files/output.log."""
    run = d / "wandb/run-20250311_100000-a1b2c3d4"
    save(
        run / "files/output.log",
        [
            *plain(falling(300, 2.3, 0.6, 987, 0.05)),
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 31, in <module>',
            "    x = batch['image']",
            "KeyError: 'image'",
        ],
    )
    (run / "files/wandb-summary.json").write_text(
        json.dumps({"loss": 0.71, "_step": 299, "_runtime": 311})
    )
    save(run / "files/config.yaml", ["wandb_version: 1", "lr:", "  value: 0.001"])
    return wandb(run / "run-a1b2c3d4.wandb", {"loss": falling(300, 2.3, 0.6, 987, 0.05)}, 1).parent


@case(
    "findings",
    codes=STALLED,
    worst="seed3",
    runs={"seed1": "healthy", "seed2": "healthy", "seed3": "findings"},
)
def spinningup_three_seeds_of_supervised(d: Path) -> Path:
    for seed in (1, 2, 3):
        rng = random.Random(988 + seed)
        loss = (
            falling(200, 2.3, 0.6, 988 + seed, 0.03)
            if seed < 3
            else [2.3 + rng.gauss(0, 0.008) for _ in range(200)]
        )
        save(
            d / f"data/bc_s{seed}/seed{seed}/progress.txt",
            [
                "Epoch\tLoss\tLR\tTime",
                *(f"{i}\t{v!r}\t0.001\t{3.1 * i!r}" for i, v in enumerate(loss)),
            ],
        )
    return d / "data"


@case("findings", codes=LEAK)
def slurm_out_and_err_with_leak(d: Path) -> Path:
    rss = grow(600, 12.0, 118.0, 992)
    save(
        d / "logs/slurm-88.out",
        [
            f"step {i} loss {v:.4f} rss {rss[i]:.2f}GB"
            for i, v in enumerate(falling(600, 2.3, 0.6, 992, 0.05))
        ],
    )
    save(
        d / "logs/slurm-88.err", ["UserWarning: lr_scheduler.step() called before optimizer.step()"]
    )
    return d / "logs"


@case("failed", codes=ENDED)
def slurm_err_has_the_reason(d: Path) -> Path:
    save(
        d / "logs/slurm-89.out",
        [f"step {i} loss {v:.4f}" for i, v in enumerate(falling(400, 2.3, 0.6, 993, 0.05))],
    )
    save(
        d / "logs/slurm-89.err",
        [
            "slurmstepd: error: Detected 1 oom_kill event in StepId=89.batch. Some of the step tasks have been OOM Killed."
        ],
    )
    return d / "logs"


@case("healthy")
def azure_user_logs_of_four_ranks(d: Path) -> Path:
    for r in range(4):
        save(
            d / f"user_logs/std_log_process_{r}.txt",
            [f"step {i} loss {v:.4f}" for i, v in enumerate(falling(300, 2.3, 0.6, 994, 0.05))]
            if r == 0
            else [f"rank {r} ready"],
        )
    return d / "user_logs"


@case("findings", codes=NONFINITE)
def clearml_scalars_csv(d: Path) -> Path:
    loss = lost_from(falling(300, 2.3, 0.6, 995, 0.05), 200)
    return save(
        d / "scalars.csv",
        ["metric,variant,iter,value", *(f"loss,train,{i * 10},{v}" for i, v in enumerate(loss))],
    )


@case("healthy")
def neptune_series_csv(d: Path) -> Path:
    return save(
        d / "metrics_train_loss.csv",
        [
            f"{i}.0,{1741687200000 + i * 1000},{v!r}"
            for i, v in enumerate(falling(300, 2.3, 0.6, 996, 0.05))
        ],
    )


@case("healthy", "findings")
def two_tables_of_one_run(d: Path) -> Path:
    loss = falling(300, 2.3, 0.6, 997, 0.05)
    csv(d / "run/train.csv", {"loss": loss}, 1)
    csv(d / "run/val.csv", {"val_loss": [v * 1.1 for v in loss[::10]]}, 1)
    return d / "run"


@case("findings", codes=NONFINITE)
def json_columns_of_keras_history(d: Path) -> Path:
    loss = lost_from(falling(40, 1.3, 0.3, 998, 0.02, 0.3), 21)
    d.mkdir(exist_ok=True)
    (d / "history.json").write_text(
        json.dumps({"loss": loss, "val_loss": loss, "accuracy": [0.5 + e / 100 for e in range(40)]})
    )
    return d / "history.json"


@case("healthy")
def truncated_jsonl_of_a_live_run(d: Path) -> Path:
    path = jsonl(d / "m.jsonl", {"loss": falling(400, 3, 1, 999, 0.04)}, 2)
    path.write_bytes(path.read_bytes()[:-9])
    return path


@case("healthy")
def night_without_a_line(d: Path) -> Path:
    """The laptop slept for nine hours between two steps, and then went on."""
    loss = falling(400, 2.3, 0.6, 1000, 0.05)
    return save(
        d / "run.log",
        [
            f"{clock(i + (25000 if i > 200 else 0))} step {i} loss {v:.4f}"
            for i, v in enumerate(loss)
        ],
    )


@case("refused", "unknown")
def pickled_history(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    (d / "history.pkl").write_bytes(pickle.dumps({"loss": falling(40, 1.3, 0.3, 1001, 0.02)}))
    return d / "history.pkl"


@case("refused", "unknown")
def a_readme_is_no_log(d: Path) -> Path:
    return save(
        d / "README.md",
        [
            "# My project",
            "",
            "Train with `python train.py --lr 0.1`; the loss should reach 0.5 after 10 epochs.",
            "",
            "| model | acc |",
            "|---|---|",
            "| small | 71.2 |",
            "| large | 78.1 |",
        ],
    )


@case("refused", "unknown")
def an_empty_log(d: Path) -> Path:
    d.mkdir(exist_ok=True)
    (d / "train.log").write_bytes(b"")
    return d / "train.log"


@case("refused", "unknown")
def a_log_that_died_before_its_first_step_without_a_word(d: Path) -> Path:
    return save(
        d / "train.log",
        [
            "Loading tokenizer",
            "Loading checkpoint shards:  50%|█████     | 2/4 [00:03<00:03,  1.51s/it]",
            "Number of parameters: 7,241,732,096",
        ],
    )


@case("failed", codes=ENDED)
def a_log_that_died_before_its_first_step(d: Path) -> Path:
    return save(
        d / "train.log",
        [
            "Loading tokenizer",
            "Number of parameters: 7,241,732,096",
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 12, in <module>',
            "    model.cuda()",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 23.64 GiB",
        ],
    )
