"""Scanning checkpoints from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import hf_run, safetensors, weights

import headway
from headway.config import Settings
from headway.errors import UnreadableInput
from headway.postmortem.scan import last_good, scan


def codes(report: headway.Report) -> list[str]:
    return [item.code for item in report.findings]


def test_a_clean_file(tmp_path: Path) -> None:
    report = scan(safetensors(tmp_path / "model.safetensors", weights(0)))
    assert report.verdict == "healthy"
    assert report.command == "scan"
    [source] = report.sources
    assert source["clean"] is True
    assert source["tensors"] == 4
    assert source["nonfinite"] == 0


def test_a_nan_is_named_with_its_place(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors", weights(0, bad=3))
    report = scan(str(path))
    assert report.causes[0].code == "HD701"
    finding = report.causes[0].root
    assert finding.where.module == "layers.2.weight"
    assert finding.where.file == str(path)
    assert finding.evidence["nan"] == 3
    assert finding.evidence["first_index"] == [0, 0]
    assert finding.evidence["share"] == 3 / 256
    assert finding.evidence["dead"] is False


def test_the_checkpoints_of_a_run_and_the_last_good_one(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200, 300), bad_from=300)
    report = scan(folder)
    assert [item["step"] for item in report.sources] == [100, 200, 300]
    assert [item["clean"] for item in report.sources] == [True, True, False]
    assert last_good(report) == folder / "checkpoint-200"
    first = report.causes[0].root
    assert first.code == "HD701"
    assert first.step == 300
    assert first.evidence["last_good"] == str(folder / "checkpoint-200")
    assert first.remedies[0].text.startswith("Resume from checkpoint-200 (step 200, before")


def test_of_a_run_of_our_own_only_states_are_scanned(tmp_path: Path) -> None:
    incident, snapshot = tmp_path / "incidents" / "1-step121", tmp_path / "snapshots" / "1-step160"
    for folder in (incident, snapshot):
        folder.mkdir(parents=True)
        safetensors(folder / "state.safetensors", weights(0))
    safetensors(incident / "batch.safetensors", weights(1, bad=3))
    (incident / "incident.json").write_text("{}")
    safetensors(snapshot / "rank0.safetensors", weights(2))
    (snapshot / "rank0.json").write_text("{}")
    report = scan(tmp_path)
    assert report.verdict == "healthy"
    assert [item["path"] for item in report.sources] == [str(snapshot / "state.safetensors")]


def test_none_is_clean(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200), bad_from=100)
    report = scan(folder)
    assert last_good(report) is None
    assert "None of the 2 checkpoints" in report.causes[0].root.remedies[0].text


def test_the_same_weights_twice(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200))
    for step in (100, 200):
        safetensors(folder / f"checkpoint-{step}" / "model.safetensors", weights(0))
    assert codes(scan(folder)) == ["HD705"]


def test_a_torn_checkpoint_among_others(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200))
    torn = folder / "checkpoint-200" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    report = scan(folder)
    assert codes(report) == ["HD702"]
    assert last_good(report) == folder / "checkpoint-100"


def test_a_flipped_bit(tmp_path: Path) -> None:
    tensors = weights(0)
    tensors["layers.1.weight"][3, 3] = 3e8
    report = scan(safetensors(tmp_path / "model.safetensors", tensors))
    assert codes(report) == ["HD704"]
    assert report.findings[0].where.module == "layers.1.weight"


def test_growth_is_a_note(tmp_path: Path) -> None:
    folder = hf_run(tmp_path / "run", saves=(100, 200))
    grown = {name: value * 50 for name, value in weights(1).items()}
    safetensors(folder / "checkpoint-200" / "model.safetensors", grown)
    [note] = scan(folder).notes
    assert "the norm of all weights grew from" in note


def test_a_head_that_should_be_tied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(0, 1, (8, 4)).astype("float32")
    tensors = {"wte.weight": table, "lm_head.weight": table + 1}
    safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert codes(scan(tmp_path)) == ["HD707"]


def test_several_paths_and_settings(tmp_path: Path) -> None:
    one = safetensors(tmp_path / "a.safetensors", weights(0))
    two = safetensors(tmp_path / "b.safetensors", weights(1, bad=2))
    assert codes(scan([one, two], settings=Settings(select=("HD701",)))) == ["HD701"]
    assert codes(scan([one, two], settings=Settings(select=("HD702",)))) == []


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = safetensors(tmp_path / "a.safetensors", weights(0))
    scan(path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (1024, 1024)


def test_what_cannot_be_scanned(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="does not exist"):
        scan(tmp_path / "missing")
    with pytest.raises(UnreadableInput, match=r"contains no checkpoint\. Supported formats: torch"):
        scan(tmp_path)
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(UnreadableInput, match=r"is not a checkpoint\. Supported formats: torch"):
        scan(text)
    text.write_text("")
    with pytest.raises(UnreadableInput, match="is empty"):
        scan(text)


def test_two_runs_below_one_folder_are_not_compared_with_each_other(tmp_path: Path) -> None:
    for run in ("version_0", "version_1"):
        folder = hf_run(tmp_path / run, saves=(100, 200))
        for step in (100, 200):
            # What one run has at 100, the other has at 200.
            seed = step if run == "version_0" else 300 - step
            safetensors(folder / f"checkpoint-{step}" / "model.safetensors", weights(seed))
    report = scan(tmp_path)
    assert codes(report) == []
    assert [Path(item["path"]).parent.name for item in report.sources] == [
        *("version_0", "version_0", "version_1", "version_1")
    ]
    assert last_good(report) == tmp_path / "version_1" / "checkpoint-200"


def test_a_folder_for_each_step_is_one_run(tmp_path: Path) -> None:
    for step in (100, 200):
        folder = tmp_path / f"step_{step}"
        folder.mkdir()
        safetensors(folder / f"model_step_{step}.safetensors", weights(0))
    assert codes(scan(tmp_path)) == ["HD705"]
