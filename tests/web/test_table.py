"""What the table of runs and the comparison show, and what a run records for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from support.report_runs import spiked_run, write

from headway import Guard
from headway.core.records import Header, Record, StepRecord
from headway.core.signals import Signal
from headway.guard import guard_inputs
from headway.guard.guard_inputs import describe_command
from headway.rundir.live_charts import read_charts
from headway.web.run_table import read_arguments

pytest.importorskip("starlette")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--lr", "1e-3"], "train.py --lr 1e-3"),
        (["train.py", "--api-key", "abc", "x"], "train.py --api-key '***' x"),
        (["train.py", "--hf_token=abc"], "train.py '--hf_token=***'"),
        (["train.py", "--password", "--lr", "1"], "train.py --password --lr 1"),
    ],
)
def test_the_command_line_has_no_secrets(words: list[str], shown: str) -> None:
    assert describe_command(words) == shown


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("train.py --lr 1e-3 --seed=2 out", {"--lr": "1e-3", "--seed": "2"}),
        (
            "train.py --shift -0.5 --bf16 --name 'a b'",
            {"--shift": "-0.5", "--bf16": "yes", "--name": "a b"},
        ),
        ("train.py model.size=3 +data=tiny", {"model.size": "3", "+data": "tiny"}),
        ("train.py --last", {"--last": "yes"}),
        ("train.py 'an open quote", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_options_of_a_command_line_are_settings(line: object, options: dict[str, str]) -> None:
    assert read_arguments(line) == options


def test_a_run_records_what_one_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "train.py").write_text("lr = 1\n")
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-q", "-m", "first")
    monkeypatch.chdir(tmp_path)
    guard_inputs._git_state.cache_clear()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)

    facts = guard_inputs.describe_run([model], [optimizer], None)
    assert len(facts["git_commit"]) == 40
    assert facts["git_dirty"] is False
    assert facts["settings"]["lr"] == 0.25
    assert facts["settings"]["betas"] == [0.9, 0.999]
    assert facts["host"]

    (tmp_path / "train.py").write_text("lr = 2\n")
    guard_inputs._git_state.cache_clear()
    assert guard_inputs.describe_run([model], [optimizer], None)["git_dirty"] is True
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "git_commit" not in guard_inputs.describe_run([model], [optimizer], None)
    # All of it can be written, and read again.
    with Guard(model, optimizer, run_dir=tmp_path / "run") as guard:
        guard.backward(model(torch.randn(3, 2)).square().mean())
        optimizer.step()
    assert read_charts(tmp_path / "run").facts["settings"]["lr"] == 0.25


def test_the_figures_of_a_run_are_the_same_from_records_and_from_charts(tmp_path: Path) -> None:
    from headway.rundir.run_reader import RunDir
    from headway.web.run_entry import RunFigures

    spiked_run(tmp_path / "run")
    one = RunFigures()
    for record in RunDir(tmp_path / "run").follow():
        one.add(record)
    other = RunFigures.from_charts(read_charts(tmp_path / "run"))
    assert one.steps == other.steps == 4000
    assert one.best == other.best
    assert one.seconds == pytest.approx(3000)
    assert other.seconds == pytest.approx(3000)
    assert one.samples == pytest.approx(other.samples) == pytest.approx(128_000)


def test_differences_of_settings_come_first(tmp_path: Path) -> None:
    from headway.web.access import ServedFolder
    from headway.web.own_run import OwnRun
    from headway.web.run_table import compare_settings, summarize_run

    def run(name: str, rate: float, note: str) -> OwnRun:
        facts = {"settings": {"lr": rate, "momentum": 0.9}, "optimizers": ["SGD"], "host": "a"}
        stream: list[Record] = [Header("headway", {"loss": Signal()}, {}, facts)]
        stream += [StepRecord(0, step + 1, step, {"loss": 2.0 - step}) for step in range(3)]
        write(tmp_path / name, stream)
        (tmp_path / name / "notes.md").write_text(note)
        made = OwnRun(ServedFolder(tmp_path), tmp_path / name)
        made.glance()
        made.check(5.0)
        return made

    runs = [run("one", 0.1, "A #baseline of #v2\nmore"), run("two", 0.2, "")]
    rows = compare_settings(runs)
    assert rows[0] == ["lr", ["0.1", "0.2"], True]
    assert all(not differs for _, _, differs in rows[1:])
    assert ["optimizer", ["SGD", "SGD"], False] in rows
    first = summarize_run(runs[0])
    assert (first["best"], first["lr"], first["note"]) == (0.0, 0.1, "A #baseline of #v2")
    assert first["tags"] == ["baseline", "v2"]
    assert summarize_run(runs[1])["tags"] == []


def test_a_run_that_is_not_read_yet_keeps_its_place(tmp_path: Path) -> None:
    """Colours and groups go by the position of a run, whatever of the others has come."""
    from headway.web.access import ServedFolder
    from headway.web.own_run import OwnRun
    from headway.web.page_data import comparison_data

    runs = []
    for name in ("one", "two"):
        stream: list[Record] = [Header("headway", {"loss": Signal()}, {}, {})]
        stream += [StepRecord(0, step + 1, step, {"loss": 2.0 - step}) for step in range(3)]
        write(tmp_path / name, stream)
        runs.append(OwnRun(ServedFolder(tmp_path), tmp_path / name))
    data = comparison_data([(runs[0], None), (runs[1], runs[1].charts(None, None, 100))])
    (series,) = data["panels"][0]["series"]
    assert (series["label"], series["colour"]) == ("two", 1)
    assert data["run_clocks"][0] is None
    assert data["end"] == 2
