"""How a foreign log ends, and logs that were packed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.third_blind_logs import mlflow_store, wandb

import headway
from headway.errors import UnreadableInput
from headway.logs.readers import readers

ROWS = [f"step {step} loss {3 - step / 50:.3f}" for step in range(60)]
IGNORED = [
    "Exception ignored in: <function Pool.__del__ at 0x7f1c>",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/multiprocessing/pool.py", line 268, in __del__',
    "AttributeError: 'NoneType' object has no attribute 'dumps'",
]
CRASH = [
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 7, in <module>',
    "KeyError: 'labels'",
]


def verdict_of(tmp_path: Path, lines: list[str]) -> tuple[str, list[str]]:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = headway.diagnose(path)
    return str(report.verdict), [item.code for item in report.findings]


@pytest.mark.parametrize(
    ("end", "verdict", "codes"),
    [
        (["./run.sh: line 3: 12345 Killed    python train.py"], "failed", ["HD913"]),
        (["run.sh: line 9:   77 Terminated     python train.py"], "interrupted", ["HD915"]),
        (["Terminated"], "interrupted", ["HD915"]),
        (["  exitcode  : -11 (pid: 81)"], "failed", ["HD913"]),
        (["  traceback : Signal 6 (SIGABRT) received by PID 81"], "failed", ["HD913"]),
        (["  traceback : Signal 15 (SIGTERM) received by PID 81"], "healthy", []),
        (["Terminating workers.", "exitcode  : 0 (pid: 81)"], "healthy", []),
        (["['/usr/bin/python', 'train.py'] exits with return code = -9"], "failed", ["HD913"]),
        (["command terminated with exit code 137"], "failed", ["HD913"]),
        (["make: *** [Makefile:12: train] Error 2"], "failed", ["HD911"]),
        (["srun: error: n14: task 3: Killed"], "failed", ["HD913"]),
        (["zsh: illegal hardware instruction (core dumped)", "Aborted"], "failed", ["HD913"]),
        (["Memory cgroup out of memory: Killed process 9 (python3)"], "failed", ["HD809"]),
        (["=>> PBS: job killed: walltime 90 exceeded limit 60"], "interrupted", ["HD915"]),
        (["TERM_MEMLIMIT: job killed after reaching LSF memory limit."], "failed", ["HD809"]),
        (["Detected KeyboardInterrupt, attempting shutdown ..."], "interrupted", ["HD915"]),
        (["Process finished with exit code -1073741819 (0xC0000005)"], "failed", ["HD911"]),
        (
            ["ValueError: too many classes", "srun: error: n1: task 1: Terminated"],
            "failed",
            ["HD911"],
        ),
        (["jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"], "failed", ["HD808"]),
        (["ExitCode 1", "Command: python train.py"], "failed", ["HD911"]),
        (["[CUDA ERROR] at file llmc/matmul.cuh:117:"], "failed", ["HD911"]),
        (["ray.exceptions.RayTaskError(ValueError): train() (pid=123)"], "failed", ["HD911"]),
        (["job 4711 died through signal KILL (9)"], "failed", ["HD913"]),
        (["Job was evicted.", "(1) Abnormal termination (signal 9)"], "failed", ["HD913"]),
        (["Essential container in task exited"], "failed", ["HD911"]),
        (["Uncaught exception. Entering post mortem debugging"], "failed", ["HD911"]),
        (["Instance was preempted."], "interrupted", ["HD915"]),
        (["CUDA error checking is off", "Skipped: the job was not evicted"], "healthy", []),
        (["Process finished with exit code 0"], "healthy", []),
        (["ValError: 0.31", "exit status: see report"], "healthy", []),
        (["ConnectionError: retrying in 5 s"], "healthy", []),
        (IGNORED, "healthy", []),
        ([*IGNORED, *CRASH], "failed", ["HD911"]),
    ],
)
def test_the_last_lines(tmp_path: Path, end: list[str], verdict: str, codes: list[str]) -> None:
    assert verdict_of(tmp_path, [*ROWS, *end]) == (verdict, codes)


def test_an_ignored_exception_hides_no_later_one(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, [*ROWS[:30], IGNORED[0], *ROWS[30:], *CRASH])[0] == "failed"


def test_an_error_that_was_caught_and_then_ends_the_run(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, [*ROWS[:30], *CRASH, *ROWS[30:]]) == ("healthy", [])
    assert verdict_of(tmp_path, [*ROWS[:30], *CRASH, *ROWS[30:], *CRASH])[0] == "failed"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("FINISHED", "healthy"),
        ("RUNNING", "healthy"),
        ("FAILED", "failed"),
        ("KILLED", "interrupted"),
    ],
)
def test_the_status_in_mlflow(tmp_path: Path, status: str, verdict: str) -> None:
    loss = [3 - step / 50 for step in range(60)]
    report = headway.diagnose(mlflow_store(tmp_path / "m.db", {"a": (status, {"loss": loss})}))
    assert report.verdict == verdict


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "healthy"), (None, "healthy"), (1, "failed"), (255, "interrupted")]
)
def test_the_exit_code_in_wandb(tmp_path: Path, code: int | None, verdict: str) -> None:
    loss = [3 - step / 50 for step in range(60)]
    report = headway.diagnose(wandb(tmp_path / "run-a.wandb", {"loss": loss}, code))
    assert report.verdict == verdict
    notes = " ".join(report.notes)
    assert ("records no end" in notes) == (code is None)


def test_the_line_in_a_box_of_rich(tmp_path: Path) -> None:
    box = [
        "╭──────────── Traceback (most recent call last) ─────────────╮",
        "│ /home/u/train.py:88 in main                                │",
        "│ ❱ 88     loss = criterion(model(batch[0]), batch[1])       │",
        "│ /venv/lib/python3.11/site-packages/torch/nn/f.py:9 in call │",
        "╰────────────────────────────────────────────────────────────╯",
        "IndexError: Target 10 is out of bounds.",
    ]
    (tmp_path / "train.log").write_text("\n".join([*ROWS, *box]), encoding="utf-8")
    where = headway.diagnose(tmp_path / "train.log").causes[0].root.where
    assert (where.file, where.line) == ("/home/u/train.py", 88)


def test_the_end_in_the_other_stream(tmp_path: Path) -> None:
    (tmp_path / "slurm-1.out").write_text("\n".join(ROWS))
    (tmp_path / "slurm-2.err").write_text("Segmentation fault (core dumped)\n")
    assert headway.diagnose(tmp_path).verdict == "healthy"
    (tmp_path / "slurm-1.err").write_text("Segmentation fault (core dumped)\n")
    report = headway.diagnose(tmp_path)
    assert (report.verdict, report.causes[0].code) == ("failed", "HD913")
    (tmp_path / "log.err").write_text("Segmentation fault (core dumped)\n")  # of neither
    assert headway.diagnose(tmp_path).verdict == "failed"


def test_a_store_and_a_console_that_count_differently(tmp_path: Path) -> None:
    """The console counts from 1: its last row seems to come after the end of the store."""
    loss = [3 - step / 50 for step in range(60)]
    wandb(tmp_path / "run-a.wandb", {"loss": loss}, 1)
    rows = [f"step {step + 1} loss {value}" for step, value in enumerate(loss)]
    error = ["Traceback (most recent call last):", '  File "train.py", line 3', "KeyError: 'image'"]
    (tmp_path / "output.log").write_text("\n".join([*rows, *error]))
    report = headway.diagnose(tmp_path)
    assert report.verdict == "failed"
    assert "KeyError" in report.causes[0].message


def test_a_packed_log_that_was_cut_off(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join([*ROWS, "step 60 loss nan"] * 40).encode(), mtime=0)
    (tmp_path / "train.log.gz").write_bytes(packed[: len(packed) // 2])
    assert "steps 0 to" in headway.diagnose(tmp_path / "train.log.gz").looked_at
    (tmp_path / "x.log.gz").write_bytes(b"\x1f\x8b\x08 this is no packed file")
    with pytest.raises(UnreadableInput, match=r"empty|not supported"):
        headway.diagnose(tmp_path / "x.log.gz")


def test_packed_logs_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.log.1.gz").write_bytes(
        gzip.compress("\n".join(ROWS).encode(), mtime=0)
    )
    rows = "epoch,loss\n" + "\n".join(f"{n},{1 + 1 / (n + 1)}" for n in range(40))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.csv.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    assert len(headway.diagnose(tmp_path).runs) == 2


TEXTS = {
    "a.jsonl": [json.dumps({"step": step, "loss": 3 - step / 50}) for step in range(60)],
    "b.csv": ["step,loss", *(f"{step},{3 - step / 50}" for step in range(60))],
    "c.json": [json.dumps({"levelname": "INFO", "message": row}) for row in ROWS],
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_lines_after_the_last_row_of_a_file_of_rows(tmp_path: Path, name: str) -> None:
    end = json.dumps({"level": "error", "exception": "\n".join(CRASH)})
    for last, verdict in (([], "healthy"), (["Killed"], "failed"), ([end], "failed")):
        (tmp_path / name).write_text("\n".join([*TEXTS[name], *last]) + "\n", encoding="utf-8")
        report = headway.diagnose(tmp_path / name)
        assert report.verdict == verdict, (last, report.findings)


def test_the_documentation_lists_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "after.md").read_text(encoding="utf-8").lower()
    page = page[page.index("## log formats") :]
    words = {"weights": "w&b", "text": "any other text"}
    for reader in readers():
        first = reader.label.split()[0].lower()
        assert words.get(first, first) in page, reader.label
