"""One story out of logs, settings and checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path

import pytest
from support.checkpoint_files import hf_run, history, safetensors, weights
from support.strategies import mutated, quick_folder

import headway
from headway.errors import UnreadableInput
from headway.postmortem import last_good
from headway.postmortem.diagnose import diagnose


def first(report: headway.Report) -> headway.Finding:
    return report.causes[0].root


def test_a_nan_between_two_saves_and_the_checkpoint_before(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200, 300), bad_from=270, last=340)
    report = diagnose(folder)
    assert first(report).code == "HD101"
    assert first(report).step == 270
    assert first(report).evidence["last_good"] == str(folder / "checkpoint-200")
    assert first(report).remedies[0].text == (
        "Resume from checkpoint-200 (step 200, before the onset at 270; 4 tensors, all finite)."
    )
    assert "HD701" in [item.code for item in report.causes[0].symptoms]
    assert [item["format"] for item in report.sources[:2]] == ["hf-trainer", "hf-console"]
    assert [item["step"] for item in report.sources[2:]] == [100, 200, 300]


def test_the_console_alone_shows_it_after_the_last_save(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200), bad_from=230, last=260)
    report = diagnose(folder)
    assert (first(report).code, first(report).step) == ("HD101", 230)
    assert first(report).evidence["last_good"] == str(folder / "checkpoint-200")


def test_a_checkpoint_that_was_bad_before_the_log_showed_it_is_not_named(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200), bad_from=230, last=260)
    bad = weights(200, bad=1)
    safetensors(folder / "checkpoint-200" / "model.safetensors", bad)
    report = diagnose(folder)
    assert first(report).evidence["last_good"] == str(folder / "checkpoint-100")


def test_large_checkpoints_are_looked_through_from_the_onset_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_good, "SCAN_ALL", 10)
    folder = hf_run(tmp_path / "run", saves=(100, 200, 300), bad_from=270, last=340)
    report = diagnose(folder)
    assert first(report).evidence["last_good"] == str(folder / "checkpoint-200")
    looked = [item["step"] for item in report.sources if "clean" in item]
    assert looked == [200, 300], "the newest, and back to the first clean one"
    assert any("2 of 3 checkpoints were scanned" in note for note in report.notes)


def test_a_healthy_run(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200, 300), last=300)
    report = diagnose(folder)
    assert report.verdict == "healthy"
    assert all("last_good" not in item.evidence for item in report.findings)


def test_the_state_in_a_checkpoint_knows_its_siblings(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200, 300), bad_from=270)
    report = diagnose(folder / "checkpoint-300" / "trainer_state.json")
    assert first(report).evidence["last_good"] == str(folder / "checkpoint-200")


def test_settings_beside_the_log_are_told(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200), last=200)
    (folder / "args.json").write_text(json.dumps({"lr": 0.003, "max_grad_norm": 1.0}))
    notes = diagnose(folder).notes
    assert "settings: learning_rate 0.003, max_norm 1.0" in notes


def test_several_runs_in_a_folder(tmp_path: Path) -> None:
    for name, bad, age in (("a", None, 0), ("b", 150, 100), ("c", None, 50)):
        place = tmp_path / name
        place.mkdir()
        rows = history(300, nan_from=bad)
        for row in rows:
            row["loss"] += ord(name) - 97
        log = place / "log.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(log, (1_000_000 - age, 1_000_000 - age))
    report = diagnose(tmp_path)
    assert report.verdict == "findings"
    assert report.sources[0]["path"] == str(tmp_path / "b" / "log.jsonl")
    assert report.notes[0].startswith("3 runs found; the findings below are those of the worst, b")
    # The worst first, then the newest.
    assert [run.name for run in report.runs] == ["b", "a", "c"]
    assert [run.verdict for run in report.runs] == ["findings", "healthy", "healthy"]
    assert (report.runs[0].cause, report.runs[0].step) == ("HD101 nonfinite-loss", 150)
    assert report.to_dict()["runs"][0]["name"] == "b"


def test_a_log_that_goes_on_in_another_file_is_the_same_run(tmp_path: Path) -> None:
    rows = history(400, nan_from=350)
    for name, part in (("one", rows[:20]), ("two", rows[20:])):
        place = tmp_path / name
        place.mkdir()
        (place / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    report = diagnose(tmp_path)
    assert len(report.sources) == 2
    assert first(report).step == 350


def test_checkpoints_without_a_log_are_scanned(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors", weights(0, bad=2))
    for given in (path, tmp_path):
        report = diagnose(given)
        assert report.command == "diagnose"
        assert first(report).code == "HD701"


def test_a_run_of_our_own_below(tmp_path: Path) -> None:
    from headway.core.records import Header, StepRecord
    from headway.core.signals import Signal
    from headway.rundir.writer import RunDirWriter

    writer = RunDirWriter(tmp_path / "out" / "headway", notify=pytest.fail)
    writer.write(Header("headway", signals={"loss": Signal()}))
    for step in range(1, 40):
        writer.write(StepRecord(0, step, step, {"loss": float("nan") if step == 30 else 1.0}))
    writer.flush()
    assert first(diagnose(tmp_path)).code == "HD101"
    hf_run(tmp_path / "out", saves=(10, 20, 40))
    remedy = first(diagnose(tmp_path)).remedies[0].text
    assert remedy.startswith("Resume from checkpoint-20 (step 20, before the onset at 30;")


def test_a_run_whose_bad_update_was_held_back_is_not_sent_back(tmp_path: Path) -> None:
    from headway.core.records import Header, StepRecord
    from headway.core.signals import Signal
    from headway.rundir.writer import RunDirWriter

    writer = RunDirWriter(tmp_path / "out" / "headway", notify=pytest.fail)
    writer.write(Header("headway", signals={"loss": Signal()}))
    for step in range(1, 40):
        bad = step == 30
        values = {"loss": float("nan") if bad else 1.0}
        writer.write(StepRecord(0, step, step, values, held=bad))
    writer.flush()
    hf_run(tmp_path / "out", saves=(10, 20, 40))
    finding = first(diagnose(tmp_path))
    assert finding.code == "HD101"
    assert "last_good" not in finding.evidence


def test_folders_that_are_nobodys_log_are_left_alone(tmp_path: Path) -> None:
    for name in (".git", "node_modules", "venv", "__pycache__"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "log.jsonl").write_text(
        "".join(json.dumps({"step": n, "loss": 1.0}) + "\n" for n in range(50))
    )
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "config.json").write_text(json.dumps({"lr": 0.1, "loss": 3}))
    (tmp_path / "train.py").write_text("loss = 1.0\nlr = 0.1\nstep = 3\n" * 50)
    with pytest.raises(UnreadableInput, match="contains no log and no checkpoint"):
        diagnose(tmp_path)


def test_what_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hf_run(tmp_path / "run", saves=(100,), last=100)
    (folder / "checkpoint-100" / "trainer_state.json").write_text('{"log_history": [{"loss": 1')
    report = diagnose(folder)
    assert any(note.startswith("could not be read: ") for note in report.notes)


def test_checkpoints_that_count_epochs_beside_a_log_of_steps(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in history(400, nan_from=350)))
    for epoch in (1, 2, 3):
        path = tmp_path / f"model_epoch_{epoch}.safetensors"
        safetensors(path, weights(epoch, bad=9 if epoch == 3 else 0))
    remedy = first(diagnose(tmp_path)).remedies[0].text
    assert remedy == "Resume from model_epoch_2.safetensors (epoch 2; 4 tensors, all finite)."


def test_a_divergence_leaves_no_trace_to_tell_epochs_by(tmp_path: Path) -> None:
    rows = history(400)
    for row in rows[25:]:
        row["loss"] *= 1.0 + (row["step"] - 250) / 5
        row["grad_norm"] *= 1.0 + (row["step"] - 250) / 2
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for epoch in (1, 2, 3):
        safetensors(tmp_path / f"model_epoch_{epoch}.safetensors", weights(epoch))
    report = diagnose(tmp_path)
    assert report.verdict == "findings"
    assert "last_good" not in first(report).evidence


@pytest.mark.slow
def test_a_damaged_folder_is_diagnosed_or_refused_and_nothing_else() -> None:
    rng = random.Random(0)
    with quick_folder() as folder:
        run = hf_run(folder / "run", saves=(100, 200), bad_from=180, last=240)
        whole = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
        for _ in range(60):
            path = rng.choice(list(whole))
            path.write_bytes(mutated(whole[path], rng))
            with contextlib.suppress(UnreadableInput):
                json.loads(diagnose(run).to_json())
            path.write_bytes(whole[path])
        assert {path for path in run.rglob("*") if path.is_file()} == set(whole), "nothing written"


def test_a_run_with_loss_terms_and_no_single_loss_is_judged(tmp_path: Path) -> None:
    rows = [
        {"step": step, "loss_G": 2 + (step % 7) / 10, "loss_D": 0.7 - (step % 5) / 50}
        for step in range(200)
    ]
    log = tmp_path / "gan.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = diagnose(log)
    assert report.verdict == "healthy"
    assert report.looked_at == "200 losses of g, d, steps 0 to 199"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:4]))
    assert diagnose(log).verdict == "unknown"
