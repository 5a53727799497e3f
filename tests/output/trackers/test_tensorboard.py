"""TensorBoard's own reader finds what the run directory holds, as 32-bit floats."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.store_files import column
from support.tracked_runs import NAN_STEP, STEPS, assert_same_rows, recorded, train

from headway.logs import readers

pytestmark = pytest.mark.trackers
pytest.importorskip("tensorboard")


def single(value: float) -> float:
    """As a 32-bit float."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def read(folder: Path) -> tuple[dict[int, dict[str, float]], list[tuple[int, str]]]:
    """(step → its scalars, the texts with their steps)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    rows: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            rows[event.step][tag] = event.value
    texts = []
    for tag in events.Tags()["tensors"]:
        assert events.SummaryMetadata(tag).plugin_data.plugin_name == "text"
        texts += [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)]
    return dict(rows), texts


def expected(run: Path) -> dict[int, dict[str, float]]:
    return {
        step: {key: single(value) for key, value in row.items()}
        for step, row in recorded(run).items()
    }


def test_by_name_it_lies_in_the_run_directory(tmp_path: Path) -> None:
    train(["tensorboard"], tmp_path)
    rows, texts = read(tmp_path / "tensorboard")
    assert_same_rows(rows, expected(tmp_path))
    told = {text.partition(" ")[0].strip("*"): step for step, text in texts}
    assert told["HD101"] == told["HD201"] == NAN_STEP


def test_into_a_folder_of_ones_own(tmp_path: Path) -> None:
    train([f"tensorboard:{tmp_path / 'logs'}"], tmp_path / "run")
    assert_same_rows(read(tmp_path / "logs")[0], expected(tmp_path / "run"))


def test_without_a_run_directory_it_goes_where_tensorboard_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(["tensorboard"])
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(read(folder)[0]) == STEPS


def test_a_summary_writer_of_the_users_stays_theirs(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        train([writer], tmp_path / "run")
        writer.add_scalar("after", 1.0, 0)  # still open
    rows, texts = read(tmp_path / "logs")
    assert rows[0].pop("after") == 1.0
    assert_same_rows(rows, expected(tmp_path / "run"))
    assert len(texts) >= 2


def test_our_own_reader_diagnoses_it(tmp_path: Path) -> None:
    train(["tensorboard"], tmp_path)
    (file,) = (tmp_path / "tensorboard").iterdir()
    log = readers.read(file)
    assert log.format == "tensorboard"
    assert math.isnan(column(log, "loss")[NAN_STEP])


def test_writing_an_event_file_needs_no_torch(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from headway.output.trackers.tracker_group import open_trackers
from headway.core.records import StepRecord
trackers = open_trackers(["tensorboard"], run_dir=Path({str(tmp_path)!r}), notify=print)
trackers.queues[0].record(StepRecord(0, 1, 3, {{"loss": float("nan")}}))
trackers.close()
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
"""
    done: Any = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    rows, _ = read(tmp_path / "tensorboard")
    assert math.isnan(rows[3]["loss"])
