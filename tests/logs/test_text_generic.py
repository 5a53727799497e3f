"""Any key-value log: names, values, steps, what is told between, and what is no log."""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

import pytest

import headway
from headway.errors import UnreadableInput
from headway.logs import readers
from headway.logs.console_events import find_nonfinite_warning
from headway.logs.console_rows import ConsoleRows
from headway.logs.formats.console_dialects import DIALECTS
from headway.logs.free_text import FreeTextReading
from headway.logs.key_values import pairs
from headway.logs.log_file import MAX_LINE, console_lines, sample, strip_prefix
from headway.logs.log_table import Log

FREE_TEXT = next(dialect for dialect in DIALECTS if dialect.format == "text")


def log_of(tmp_path: Path, lines: list[str] | str) -> Log:
    path = tmp_path / "train.log"
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    path.write_text(text, encoding="utf-8", newline="")
    return readers.read(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Epoch 1 | Total Loss: 6.49 | CPE Loss: 0.00",
            {"Epoch": 1, "Total Loss": 6.49, "CPE Loss": 0},
        ),
        ("step 120/1000 loss=2.31 lr=3e-4", {"step": 120, "loss": 2.31, "lr": 3e-4}),
        (
            "epoch=3 batch=10 loss 0.52 acc 87.5%",
            {"epoch": 3, "batch": 10, "loss": 0.52, "acc": 87.5},
        ),
        ("{'loss': '0.52', \"lr\": 1e-3}", {"loss": 0.52, "lr": 1e-3}),
        ("loss: 1,234.5  mem: 18.30GiB(19.27%)", {"loss": 1234.5, "mem": 18.3}),
        ("loss -> 2.5 norm => 3", {"loss": 2.5, "norm": 3}),
        ("loss: -0.5 lr: .5 wd: 5.", {"loss": -0.5, "lr": 0.5, "wd": 5}),
        ("loss tensor(2.3, device='x') acc np.float64(0.1)", {"loss": 2.3, "acc": 0.1}),
        (
            "top-1: 70.5 mAP50-95: 0.4 Acc@1: 3 loss/0: 2",
            {"top-1": 70.5, "mAP50-95": 0.4, "Acc@1": 3, "loss/0": 2},
        ),
        ("LR (group 0)=0.1 Loss (epoch 3): 0.5", {"LR (group 0)": 0.1, "epoch": 3, "Loss": 0.5}),
        ("eta: 0:10:00  loss: 2", {"loss": 2}),
        ("|    value_loss      | 3.1      |", {"value_loss": 3.1}),
        ("saved to checkpoint-500/model v2.1 2024-01-01", {}),
        (
            "time (ms): 250.1 | number of nan iterations: 3",
            {"time": 250.1, "number of nan iterations": 3},
        ),
    ],
)
def test_pairs(line: str, expected: dict[str, float]) -> None:
    assert {pair.name: pair.value for pair in pairs(line)} == expected


@pytest.mark.parametrize(
    "text", ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "Inf", "'nan'", "NAN"]
)
def test_what_is_not_finite(text: str) -> None:
    (found,) = pairs(f"loss: {text}")
    assert not math.isfinite(found.value)


def test_units() -> None:
    units: dict[str, str] = {}
    pairs("dt: 250.11ms | mem: 4.2G | mfu 3.2% | time (s): 3 | mem2 18.3GiB(2%)", units)
    assert units == {"dt": "ms", "mem": "G", "mfu": "%", "time": "s", "mem2": "GiB"}


@pytest.mark.parametrize(
    ("line", "rest", "rank"),
    [
        ("[rank0]:[titan] 2024-01-01 12:00:00,123 - root - INFO - step: 1", "step: 1", "0"),
        ("INFO:root:step=5", "step=5", ""),
        ("2024-01-01 12:00:00.123 | INFO     | __main__:main:12 - step 5", "step 5", ""),
        ("I0101 12:00:00.000000 140 train.py:105] step 5", "step 5", ""),
        ("(RayTrainWorker pid=1, ip=10.0.0.1) step 5", "step 5", ""),
        (
            "[2024-01-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 3] step=1",
            "step=1",
            "3",
        ),
        ("[default2]:step 5", "step 5", "2"),
        ("[06/01 12:00:00 d2.utils.events]:  eta: 1", "eta: 1", ""),
        ("[INFO|trainer.py:213] 2024-01-01 12:00:00,1 >> step 5", "step 5", ""),
        ("step 5: loss 2", "step 5: loss 2", ""),
    ],
)
def test_labels_are_taken_off(line: str, rest: str, rank: str) -> None:
    assert strip_prefix(line) == (rest, rank)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Warning: NaN gradient detected at step 92261", ("grad_norm", 92261)),
        ("ERROR: Invalid loss at step 12: nan", ("loss", 12)),
        ("ERROR: NaN/Inf gradient norm at step 7", ("grad_norm", 7)),
        ("[WARNING] Non-finite loss detected at iteration 3", ("loss", 3)),
        ("No NaN gradient found at step 5", None),
        ("checking for NaN gradients every step 5", None),
        ("nan loss", None),
        ("step 5 loss: nan", None),
        ("info: gradient at step 4", None),
    ],
)
def test_complaints(line: str, expected: tuple[str, int] | None) -> None:
    assert find_nonfinite_warning(line) == expected


def test_a_script_that_skips_and_only_complains(tmp_path: Path) -> None:
    def lines(bad: range) -> list[str]:
        return [
            f"ERROR: Invalid loss at step {step}: nan\n  text_loss: nan\n  latent_loss: 0.41"
            if step in bad
            else f"step {step} Total Loss: {2 - step / 200:.4f} text_loss: 1.5 latent_loss: 0.5"
            for step in range(200)
        ]

    for bad, severity in ((range(120, 200), "error"), (range(120, 121), "warning")):
        log = log_of(tmp_path, lines(bad))
        assert [step for step, loss in losses(log) if math.isnan(loss)] == list(bad)
        finding = headway.diagnose(tmp_path / "train.log").causes[0].root
        assert (finding.code, finding.step, str(finding.severity)) == ("HD101", 120, severity)


def test_a_gradient_complained_of_once_does_not_end_the_run(tmp_path: Path) -> None:
    lines = [f"step {step} loss: {2 - step / 200:.4f}" for step in range(200)]
    lines.insert(120, "Warning: NaN gradient detected at step 120")
    log_of(tmp_path, lines)
    finding = headway.diagnose(tmp_path / "train.log").causes[0].root
    assert (finding.code, finding.step, str(finding.severity)) == ("HD201", 120, "warning")
    log_of(tmp_path, [f"Warning: NaN gradient detected at step {at}" for at in range(92261, 92300)])
    finding = headway.diagnose(tmp_path / "train.log").causes[0].root
    assert (finding.code, finding.step, str(finding.severity)) == ("HD201", 92261, "error")


def losses(log: Log) -> list[tuple[int, float]]:
    series = log.table.series["Total Loss"]
    return [
        (log.table.steps[at], float(series.numbers()[n])) for n, at in enumerate(series.where())
    ]


def test_epochs_and_steps_make_one_step(tmp_path: Path) -> None:
    lines = [
        f"Epoch [{e}/3], Step [{i}/500], Loss: 0.5" for e in (1, 2, 3) for i in range(100, 501, 100)
    ]
    assert list(log_of(tmp_path, lines).table.steps) == list(range(100, 1501, 100))
    lines = [f"epoch {e} batch {i} loss 0.5" for e in (0, 1, 2) for i in range(0, 30, 10)]
    assert list(log_of(tmp_path, lines).table.steps) == list(range(0, 90, 10))
    lines = [f"epoch {i // 30} step {i} loss 0.5" for i in range(0, 90, 10)]
    assert list(log_of(tmp_path, lines).table.steps) == list(range(0, 90, 10))
    lines = [f"[{e}, {i:5d}] loss: 0.5" for e in (1, 2) for i in (2000, 4000)]
    assert list(log_of(tmp_path, lines).table.steps) == [2000, 4000, 6000, 8000]
    lines = [f"{i}/50 loss: 0.5" for _ in range(2) for i in (10, 20, 30, 40, 50)]
    assert list(log_of(tmp_path, lines).table.steps) == list(range(10, 101, 10))


def test_a_restart_goes_back(tmp_path: Path) -> None:
    lines = [f"step {i} loss 0.5" for i in range(10)] + ["Resuming from checkpoint-5"]
    log = log_of(tmp_path, [*lines, *(f"step {i} loss 0.4" for i in range(5, 10))])
    assert list(log.table.steps) == [*range(10), *range(5, 10)]
    assert [(h.row, h.kind, dict(h.data)) for h in log.events] == [(10, "restart", {"step": 5})]


def test_units_of_rows(tmp_path: Path) -> None:
    assert log_of(tmp_path, [f"Epoch {e} loss: 0.5" for e in range(3)]).unit == "epoch"
    log = log_of(tmp_path, [f"loss: {i}.5" for i in range(3)])
    assert (log.unit, list(log.table.steps)) == ("row", [1, 2, 3])


def test_blocks_and_evaluations(tmp_path: Path) -> None:
    lines = []
    for epoch in (0, 1):
        lines += [
            f"Epoch {epoch}/24",
            "----------",
            "train Loss: 0.65 Acc: 0.62",
            "val Loss: 0.28 Acc: 0.89",
            "",
        ]
    rows = list(log_of(tmp_path, lines).table.plain())
    assert rows[1] == (1, {"train Loss": 0.65, "Acc": 0.62, "val Loss": 0.28, "eval/Acc": 0.89})


def test_settings_are_no_rows(tmp_path: Path) -> None:
    settings = [
        "Namespace(lr=0.001, epochs=10, batch_size=64, max_grad_norm=1.0)",
        "  weight_decay .............. 0.1",
        "warmup_steps: 100",
        "precision: bf16-mixed",
        "Number of parameters: 1,234,567",
    ]
    log = log_of(tmp_path, settings + [f"step {i} loss 0.5 lr 0.1" for i in range(5)])
    assert len(log.table) == 5
    assert (log.used, log.lines) == (5, 10)
    assert log.facts == {
        "learning_rate": 0.001, "batch_size": 64.0, "max_norm": 1.0, "weight_decay": 0.1, "warmup": 100.0,
        "precision": "bf16",
    }  # fmt: skip


def test_what_is_told(tmp_path: Path) -> None:
    lines = [
        "step 1 loss 0.5",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "step 2 loss 0.5",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    loss.backward(step=5, loss=3)",
        "RuntimeError: shape mismatch: 3 vs 5",
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Killed",
        "Loading checkpoint shards: 100% 2/2",
    ]
    log = log_of(tmp_path, lines)
    assert [(h.row, h.kind) for h in log.events] == [
        (1, "scaler-skip"), (2, "exception"), (2, "out-of-memory-in-log"), (2, "killed-in-log"),
    ]  # fmt: skip
    assert log.events[1].data["error"] == "RuntimeError: shape mismatch: 3 vs 5"
    assert [values.get("loss_scale") for _, values in log.table.plain()] == [None, 32768.0]


def test_ranks_are_counted_once(tmp_path: Path) -> None:
    lines = [
        f"[rank{r}]: step {i} loss {'nan' if r and i == 3 else 0.5}"
        for i in range(5)
        for r in (0, 1)
    ]
    log = log_of(tmp_path, lines)
    # What is not finite on another rank is a row of its own, and nothing else of it is.
    assert list(log.table.steps) == [0, 1, 2, 3, 3, 4]
    assert [values for _, values in log.table.plain()].count({"loss": 0.5}) == 5
    assert any("rank 1 logged loss nan" in note for note in log.notes)
    lines = [f"{r}: step {i} loss 0.5" for i in range(5) for r in (0, 1)]
    assert list(log_of(tmp_path, lines).table.steps) == list(range(5))
    assert list(log_of(tmp_path, [f"{i}: loss 0.5" for i in range(5)]).table.steps) == list(
        range(5)
    )


def test_encodings_and_bars(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = "".join(f"step {i} loss 0.{i}\r\n" for i in range(8))
    for coding in ("utf-16", "utf-8-sig", "utf-8"):
        path.write_bytes(lines.encode(coding))
        assert list(readers.read(path).table.steps) == list(range(8))
    bars = "".join(f"\r {i}0%|██  | {i}/9 [00:01<00:05, 1.5it/s, loss=0.{i}]" for i in range(9))
    log = log_of(tmp_path, bars)
    assert list(log.table.steps) == list(range(9))
    coloured = "".join(f"\x1b[31mstep {i}\x1b[0m \x1b[1;32mloss 0.{i}\x1b[0m\n" for i in range(8))
    assert list(log_of(tmp_path, coloured).table.steps) == list(range(8))


def test_a_settings_dump_longer_than_the_first_look(tmp_path: Path) -> None:
    dump = [f"  option_{i} ..................... {i}" for i in range(4000)]
    log = log_of(tmp_path, dump + [f"step {i} loss 0.5" for i in range(3000)])
    assert (log.format, len(log.table)) == ("text", 3000)
    log = log_of(
        tmp_path, [*(f"a{i}" for i in range(3000)), *(f"step {i} loss 0.5" for i in range(9))]
    )
    assert (log.format, len(log.table)) == ("text", 9)


def test_lines_of_a_known_shape_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = [
        f"[2024-01-01 12:{i // 60 % 60:02d}:{i % 60:02d}] [rank0]: epoch {i // 500} step {i % 500}/500 "
        f"loss={'nan' if i == 900 else 1 / (i + 1)} mem: {i % 9}.5GiB | val acc: {i % 7}%"
        for i in range(1500)
    ]
    path.write_text("\n".join(lines))
    fast = readers.read(path)
    reading = FreeTextReading(ConsoleRows("text", path))
    for line in lines:
        reading.rows.lines += 1
        reading._new_shape(line, [])
    reading.flush()
    slow = reading.rows.log()
    assert fast.table.steps == slow.table.steps
    assert len(fast.table) == 1500
    for name, series in slow.table.series.items():
        assert series.rows == fast.table.series[name].rows
        assert str(series.values) == str(fast.table.series[name].values)
    assert list(fast.table.steps) == list(range(1500))


NO_LOGS = {
    "config.yaml": "learning_rate: 0.1\nepochs: 10\nmodel:\n  dim: 32\n  loss: ce\nstep: 5\nloss_weight: 0.5\n",
    "config.toml": "[train]\nlr = 6e-4\nmax_norm = 1.0\nsteps = 500\n[data]\nbatch_size = 32\n",
    "requirements.txt": "torch==2.1\nnumpy>=1.2\ntransformers==4.40.1\n",
    "notes.md": "# Notes\nWe trained it. After epoch 3 the loss was 2.5 and the accuracy was 0.8, which is fine.\n"
    * 4,
    "metrics.csv": "step,loss\n1,2.5\n2,2.4\n",
    "state.json": '{"log_history": [\n  {"loss": 0.5, "step": 1},\n  {"loss": 0.4, "step": 2}\n]}\n',
    "log.jsonl": '{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n',
    "train.py": Path(__file__).read_text(encoding="utf-8"),
    "prose.txt": "Call me Ishmael. Some years ago, never mind how long precisely, having little money.\n"
    * 9,
    "blank.txt": "\n\n   \n",
}


@pytest.mark.parametrize("name", NO_LOGS)
def test_what_is_no_log(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(NO_LOGS[name], encoding="utf-8")
    assert FREE_TEXT.recognise(sample(path)) == 0.0


HOSTILE = (
    "a=",
    " ",
    "\t",
    "(",
    "{'a': 1, '",
    "1 ",
    "1",
    ".",
    "\x1b[",
    "\x1b]a",
    "loss 1 ",
    "loss is ",
    "1%|",
)
HOSTILE += (
    "12:00:00 ",
    "[INFO",
    "a (b 1)= 2 ",
    "epoch 1:  1 / 1 ",
    "k=1,",
    "1/2/",
    "loading ",
    "nan ",
    "[1][2]",
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_line_of_a_megabyte(tmp_path: Path, piece: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(piece * (1_000_000 // len(piece)))
    assert all(len(line) <= MAX_LINE for line in console_lines(path))
    start = time.process_time()
    with contextlib.suppress(UnreadableInput):
        readers.read(path)
    assert time.process_time() - start < 1.0


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput):
        FREE_TEXT.read(tmp_path / "nothing.log")
    (tmp_path / "empty.log").write_text("")
    with pytest.raises(UnreadableInput):
        readers.read(tmp_path / "empty.log")


TABLES = {
    "fastai": ["epoch     train_loss  valid_loss  accuracy  time    "]
    + [f"{i}         0.5000{i}    0.4         0.9       00:10" for i in range(4)],
    "notebook": ["Step\tTraining Loss\tValidation Loss", *(f"{i}\t0.5\tNo log" for i in range(4))],
    "bars": ["| Epoch | Train Loss | Val Loss |", "|-------|-----------|------|"]
    + [f"|   {i}   |   0.5   |  nan  |" for i in range(4)],
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_with_a_head(tmp_path: Path, kind: str) -> None:
    log = log_of(tmp_path, TABLES[kind])
    assert log.format in ("columns", "csv")  # tabs make a csv of it
    assert log.used == 4
    assert list(log.table.steps) == [0, 1, 2, 3]
    assert log.unit == ("step" if kind == "notebook" else "epoch")
    assert len(log.table.series) == {"fastai": 3, "notebook": 1, "bars": 2}[kind]


def test_a_caught_exception_ends_nothing(tmp_path: Path) -> None:
    lines = ["step 1 loss 0.5", "Traceback (most recent call last):", '  File "a.py", line 1']
    log = log_of(tmp_path, [*lines, *(f"step {i} loss 0.5" for i in range(2, 9))])
    assert list(log.table.steps) == list(range(1, 9))


def test_megatron_hides_what_it_skipped(tmp_path: Path) -> None:
    lines = [
        f" iteration {i:8d}/     100 | consumed samples: {i} | elapsed time per iteration (ms): 250.1 | "
        f"learning rate: 6.000E-05 | lm loss: 2.5E+00 | loss scale: {2.0 ** (16 - i // 10):.1f} | "
        f"grad norm: 1.0 | number of skipped iterations: {i // 50:3d} | number of nan iterations:   0 |"
        for i in range(10, 101, 10)
    ]
    log = log_of(tmp_path, lines)
    signal = log.signals["lm loss"]
    assert (signal.nonfinite, signal.span, signal.fold) == ("filtered", 10, "mean")
    assert log.signals["number of skipped iterations"].fold == "sum"


def test_one_number_has_one_name(tmp_path: Path) -> None:
    lines = [
        *(f"step {i} loss 0.5" for i in range(3)),
        "WARNING: Loss is NaN at step 3, skipping batch",
    ]
    log = log_of(tmp_path, [*lines, "step 4 loss 0.5"])
    assert list(log.table.series) == ["loss"]
    assert [step for step, row in log.table.plain() if math.isnan(row["loss"])] == [3]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step=7 loss=nan grad_norm=1.5", {"loss": "nan", "grad_norm": "1.5"}),
        ("step 7 loss inf grad norm 1.5", {"loss": "inf", "grad norm": "1.5"}),
        ("step: 7 loss: -inf iter_time: 0.5", {"loss": "-inf", "iter_time": "0.5"}),
        ("step 7  loss      nan grad_norm       nan", {"loss": "nan", "grad_norm": "nan"}),
        ("step 7 | loss: 1.5 | number of nan iterations: 2", {"number of nan iterations": "2"}),
        ("step 7 | loss: 1.5 | nan grads: 3", {"nan grads": "3"}),
    ],
)
def test_what_follows_a_nan_does_not_swallow_it(line: str, expected: dict[str, str]) -> None:
    found = {pair.name: str(pair.value) for pair in pairs(line)}
    assert {name: str(float(value)) for name, value in expected.items()}.items() <= found.items()


GRAD = "[GRAD] Step {:4d} | Global: {:.2e} | Zero: {}/40 | NaN/Inf: {}/40 | Max: 1.0e-01 | Avg: 2.0e-02 | Range: [1.0e-06, 5.0e-01]"


def test_a_line_marked_as_one_of_gradients(tmp_path: Path) -> None:
    lines = []
    for step in range(0, 4000, 10):  # more rows than a shape is learned from
        lines.append(GRAD.format(step, 1.5 + step / 1000, 1, 0))
        lines += ["[GRAD] Problematic parameters:", "  fc.bias: norm=0.00e+00, zero=1, nan_inf=0"]
        lines.append(f"Step {step}: loss {3 - step / 4000:.4f}")
    lines.append(GRAD.format(4000, math.nan, 1, 40))
    log = log_of(tmp_path, lines)
    norms = log.table.series["global_grad_norm"]
    known = [value for value in norms.values if value == value]
    assert known[:2] == [1.5, 1.51]
    assert len(known) == 400
    report = headway.diagnose(tmp_path / "train.log")
    assert [item.code for item in report.findings if item.severity.name == "ERROR"] == ["HD201"]
    assert report.findings[0].step == 4000


def test_the_total_of_gradients_is_no_loss(tmp_path: Path) -> None:
    log = log_of(tmp_path, [f"[grad] step {n} total: {n + 1}.5" for n in range(5)])
    assert list(log.table.series) == ["global_grad_norm"]


def test_a_log_without_numbers_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text("loading the data\nstarting\nKilled\n", encoding="utf-8")
    report = headway.diagnose(path)
    assert (str(report.verdict), [item.code for item in report.findings]) == ("failed", ["HD913"])
    path.write_text("loading the data\nstarting\ndone\n", encoding="utf-8")
    with pytest.raises(UnreadableInput, match="is not supported"):
        headway.diagnose(path)


def test_a_collective_that_timed_out_has_its_rank_and_time(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    rows = [f"step {step} loss {3 - step / 50:.3f}" for step in range(60)]
    timeout = (
        "[rank3]:[E1102 03:11:09.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=18, OpType=ALLREDUCE, NumelIn=8, Timeout(ms)=600000) "
        "ran for 600012 milliseconds before timing out."
    )
    path.write_text("\n".join([*rows, timeout]) + "\n", encoding="utf-8")
    [finding] = [item for item in headway.diagnose(path).findings if item.code == "HD914"]
    assert finding.message == "no progress for 600 s. Rank 3 waits in allreduce"


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("{} tensor({}, grad_fn=<NllLossBackward0>)", True),
        ("epoch {}: tensor({}, device='cuda:0', grad_fn=<MeanBackward0>)", True),
        ("step {} loss tensor({}, grad_fn=<NllLossBackward0>)", True),
        ("{} tensor({})", False),  # it may be anything
    ],
)
def test_a_printed_tensor_with_a_graph_is_the_loss(tmp_path: Path, line: str, loss: bool) -> None:
    path = tmp_path / "out.txt"
    lines = [line.format(n, "nan" if n >= 30 else f"{2.3 - n / 50:.4f}") for n in range(40)]
    path.write_text("\n".join(lines), encoding="utf-8")
    if loss:
        assert [item.code for item in headway.diagnose(path).findings][-1] == "HD101"
    else:
        with pytest.raises(UnreadableInput):
            headway.diagnose(path)
