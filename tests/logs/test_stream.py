"""Rows become records: names, descriptions, restarts, and what the numbers say without words."""

from __future__ import annotations

import pytest
from support.log_cases import log

from headway.core.records import EventRecord, Header, StepRecord
from headway.core.signals import Signal
from headway.logs.log_names import map_name, map_names
from headway.logs.log_stream import LogStream
from headway.logs.log_table import Log, LogEvent
from headway.logs.signal_inference import digits_of


def steps(case: Log) -> list[StepRecord]:
    return [item for item in LogStream(case).records() if isinstance(item, StepRecord)]


def header(case: Log) -> Header:
    return LogStream(case).header


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("lm loss", "loss"),
        ("Loss/train", "loss"),
        ("Loss/val", "eval/loss"),
        ("loss/test", "eval/loss"),
        ("val/box_loss", "eval/box_loss"),
        ("CPE Loss", "loss/cpe"),
        ("losses/value_loss", "loss/value"),
        ("Total Grad Norm", "grad_norm"),
        ("grad norm (pre-clip)", "grad_norm"),
        ("grad_norm/post_clip", "clipped_grad_norm"),
        ("lr-AdamW/pg1", "lr"),
        ("elapsed time per iteration (ms)", "step_time_s"),
        ("RAM (GB)", "host_rss_bytes"),
        ("perf/max_memory_allocated_gb", "device_allocated_bytes"),
        ("number of skipped iterations", "scaler_skipped"),
    ],
)
def test_names(raw: str, name: str) -> None:
    found = map_name(raw)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("raw", ["epoch", "mfu", "max_grad_norm", "loss_weight", "lr_scale"])
def test_names_that_mean_nothing(raw: str) -> None:
    assert map_name(raw) is None


def test_the_mean_of_an_epoch_is_the_loss_where_there_is_no_other() -> None:
    assert map_names(["train_loss_epoch"])["train_loss_epoch"].name == "loss"
    both = map_names(["train_loss_epoch", "train_loss_step"])
    assert [item.name for item in both.values()] == ["loss"]
    assert "train_loss_step" in both


def test_a_unit_in_the_name_or_none_at_all() -> None:
    assert steps(log("ram_gb: 32"))[0].values["host_rss_bytes"] == 32 * 2**30
    assert steps(log("gpu_mem: 10240*3"))[0].values["device_allocated_bytes"] == 10240 * 2**20
    assert steps(log("ram: 3e10*3"))[0].values["host_rss_bytes"] == 3e10


def test_a_column_is_described_by_its_rows() -> None:
    signal = header(log("loss: 2.5, 2.25, 2.125", every=50)).signals["loss"]
    assert (signal.every, signal.span, signal.digits) == (50, 1, 4)
    exact = log("loss: 2..1~0.1*20").table.series["loss"]
    assert digits_of(exact) is None


def test_an_epoch_is_many_steps() -> None:
    signal = header(log("loss: 2, 1, 0.5", unit="epoch")).signals["loss"]
    assert signal.fold == "mean"
    assert signal.per_label > 1
    assert signal.steps >= 100


def test_a_filter_that_let_a_nan_through_is_none() -> None:
    told = {"loss": Signal(span=10, fold="mean", nonfinite="filtered")}
    assert header(log("loss: 2, nan", signals=told)).signals["loss"].nonfinite == "kept"
    assert header(log("loss: 2, 1", signals=told)).signals["loss"].nonfinite == "filtered"


def test_steps_that_run_backwards_begin_a_segment() -> None:
    case = log("loss: 3..2*10", every=10, restart={6: 40})
    assert [item.segment for item in steps(case)] == [0] * 6 + [1] * 4


def test_so_does_a_restart_the_log_tells() -> None:
    case = log("loss: 3..2*10", events=[LogEvent(6, "restart"), LogEvent(8, "note")])
    assert [item.segment for item in steps(case)] == [0] * 6 + [1] * 4
    kinds = [item.kind for item in LogStream(case).records() if isinstance(item, EventRecord)]
    assert kinds == ["restart", "note"]


def test_skips_are_counted_into_the_next_row() -> None:
    skips = [LogEvent(2, "scaler-skip"), LogEvent(2, "scaler-skip"), LogEvent(4, "scaler-skip")]
    case = log("loss: 3..2*6", every=10, events=skips)
    assert [item.values["scaler_skipped"] for item in steps(case)] == [0, 0, 2, 0, 1, 0]
    assert header(case).signals["scaler_skipped"] == Signal(span=10, every=10, fold="sum")


def test_the_clip_factor_follows_from_the_limit_or_from_both_norms() -> None:
    known = steps(log("grad_norm: 0.5, 4, nan", max_grad_norm=1.0))
    assert [item.values.get("clip_coef") for item in known] == [1.0, 0.25, None]
    both = steps(log("grad_norm: 4", "grad_norm_after_clip: 1"))
    assert both[0].values["clip_coef"] == 0.25


def test_a_norm_that_ends_at_a_round_number_was_taken_after_clipping() -> None:
    after = header(log("loss: 3..2*20", "grad_norm: 1*12, 0.8~0.1*8"))
    assert "grad_norm" not in after.signals
    assert "clipped_grad_norm" in after.signals
    assert "grad_norm" in header(log("grad_norm: 1*12, 1.7~0.1*8")).signals
    assert "grad_norm" in header(log("grad_norm: 0.9~0.1*20", max_grad_norm=1.0)).signals


def test_parts_of_a_detector_sum_up_where_there_is_no_total() -> None:
    row = steps(log("train/box_loss: 1", "train/cls_loss: 2", "train/dfl_loss: 0.5"))[0]
    assert row.values["loss"] == 3.5
    assert "loss" not in steps(log("d_loss: 1", "g_loss: 2"))[0].values
