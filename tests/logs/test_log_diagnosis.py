"""Logs of other tools, diagnosed: the right code at the right step, and silence on healthy ones."""

from __future__ import annotations

import pytest
from support.log_cases import HF, diagnosed, log, told

from headway.core.signals import Signal
from headway.logs.log_table import Log, LogEvent

MEAN = {"loss": Signal(span=10, every=10, fold="mean")}
FAULTY: dict[str, tuple[Log, list[str], str]] = {
    "nan to end": (
        log("loss: 2.0..1.5~0.02*50, nan*20", "grad_norm: 1~0.2*50, nan*20", every=10),
        ["HD101 error @510", "HD201 error @510"],
        "HD101",
    ),
    "nan only row": (log("loss: nan"), ["HD101 error @1"], "HD101"),
    "nan no norm": (log("loss: 2.0..1.5~0.02*5, nan*2", every=50), ["HD101 error @300"], "HD101"),
    "nan once": (
        log("loss: 2.0..1.5~0.02*50, nan, 1.5~0.02*20", every=10),
        ["HD101 warning @510"],
        "HD101",
    ),
    "hf filter off artefact": (
        log("loss: 2.0..1.5~0.02*50, nan*20", "grad_norm: 1~0.2*70", every=10, signals=MEAN),
        ["HD101 warning @510"],
        "HD101",
    ),
    "hf masked": (
        log("loss: 2.0..1.5~0.02*50, 0*20", "grad_norm: 1~0.2*50, nan*20", every=10, signals=HF),
        ["HD102 error @510", "HD201 error @510"],
        "HD102",
    ),
    "hf masked plausible first": (
        log(
            "loss: 2.0..1.5~0.02*50, 1.4, 0*20", "grad_norm: 1~0.2*50, nan*21", every=10, signals=HF
        ),
        ["HD102 error @510", "HD201 error @510"],
        "HD102",
    ),
    "hf masked from start": (
        log("loss: 0*20", "grad_norm: nan*20", every=10, signals=HF),
        ["HD102 error @10", "HD201 error @10"],
        "HD102",
    ),
    "hf masked once": (
        log(
            "loss: 2.0..1.5~0.02*50, 0, 1.5~0.02*20",
            "grad_norm: 1~0.2*50, nan, 1~0.2*20",
            every=10,
            signals=HF,
        ),
        ["HD102 warning @510", "HD201 warning @510"],
        "HD102",
    ),
    "hf plausible nan norm": (
        log("loss: 2.0..1.5~0.02*71", "grad_norm: 1~0.2*50, nan*21", every=10, signals=HF),
        ["HD002 warning @10", "HD201 error @510"],
        "HD201",
    ),
    "epoch divergence": (
        log("loss: 1.2, 0.9, 0.8, 2.5, 9.7, 80.1", unit="epoch"),
        ["HD104 error @4"],
        "HD104",
    ),
    "epoch divergence nan": (
        log("loss: 1.2, 0.9, 0.8, 2.5, 9.7, nan", unit="epoch"),
        ["HD104 error @4", "HD101 error @6"],
        "HD104",
    ),
    "divergence 100 rows": (
        log("loss: 4..1.5~0.03*70, 1.5..12~0.05*30", every=10),
        ["HD104 error @720"],
        "HD104",
    ),
    "divergence per step 60 rows": (
        log("loss: 4..1.5~0.03*40, 1.5..20~0.05*20"),
        ["HD104 error @42"],
        "HD104",
    ),
    "divergence hf": (
        log(
            "loss: 4..1.5~0.03*70, 1.6..8~0.05*12",
            "grad_norm: 1~0.2*70, 2..20*12",
            every=10,
            signals=HF,
        ),
        ["HD104 error @710"],
        "HD104",
    ),
    "explode nan": (
        log(
            "loss: 3..2~0.02*60, 2.1,2.4,3,5,8,20,nan*5",
            "grad_norm: 1~0.2*60, 3,8,20,60,300,4000, nan*5",
            every=10,
        ),
        ["HD202 error @610", "HD104 error @620", "HD101 error @670", "HD201 error @670"],
        "HD202",
    ),
    "stalled": (log("loss: 2.303~0.002*60", every=10), ["HD105 error @10"], "HD105"),
    "stalled4": (log("loss: 2.3026*40", every=10), ["HD105 error @10"], "HD105"),
    "oscillate": (
        log("loss: " + ", ".join(["2.3, 8.1"] * 15), every=10),
        ["HD115 error @10"],
        "HD115",
    ),
    "cpe": (
        log(
            "Total Loss: 6.5..3~0.05*10",
            "CPE Loss: 0*10",
            "DFL Loss: 2..1~0.05*10",
            unit="epoch",
            first=1,
            digits=2,
        ),
        ["HD106 error @1"],
        "HD106",
    ),
    "dominant": (
        log("loss: 600..590~0.05*60", "a_loss: 600..590~0.02*60", "b_loss: 0.5~0.02*60", every=10),
        ["HD107 warning @10"],
        "HD107",
    ),
    "clip sat": (
        log("loss: 2.3~0.1*200", "grad_norm: 500~0.3*200", every=10, max_grad_norm=1.0),
        ["HD208 warning @10"],
        "HD208",
    ),
    "clip both": (
        log("loss: 2.3~0.03*60", "grad_norm: 500~0.3*60", "grad_norm_clipped: 1*60", every=10),
        ["HD208 warning @10"],
        "HD208",
    ),
    "scale collapse": (
        log(
            "loss: 3..2~0.02*60, 2*12",
            "loss_scale: 32768*60, 16384, 4096,1024,256,64,16,4,1,1,1,1,1",
            every=10,
        ),
        ["HD313 error @610"],
        "HD313",
    ),
    "schedule collapsed": (
        log("loss: 3..2~0.02*60", "lr: 1e-3..0*15, 0*45", every=10),
        ["HD405 warning @150"],
        "HD405",
    ),
    "lr jump": (
        log("loss: 3..2~0.02*60", "lr: 1e-3..1e-4*40, 1e-3..1e-4*20", every=10, restart={40: 380}),
        ["HD406 warning @380"],
        "HD406",
    ),
    "lr jump event": (
        log(
            "loss: 3..2~0.02*60",
            "lr: 1e-3..1e-4*40, 1e-3..1e-4*20",
            every=10,
            events=[LogEvent(40, "restart")],
        ),
        ["HD406 warning @410"],
        "HD406",
    ),
    "skips": (
        log("loss: 3..2~0.02*60", "number of skipped iterations: 0*30, 5~0.3*30", every=10),
        ["HD414 warning @310"],
        "HD414",
    ),
    "skip events": (
        log(
            "loss: 3..2~0.02*60",
            every=10,
            events=[LogEvent(30 + i // 5, "scaler-skip") for i in range(100)],
        ),
        ["HD414 warning @310"],
        "HD414",
    ),
    "mem": (
        log("loss: 3..2~0.02*60", "gpu_mem: 10e9..20e9~0.005*60", every=10),
        ["HD802 error @10"],
        "HD802",
    ),
    "ram epochs": (
        log("loss: 3..2~0.02*12", "ram: 32e9..62e9~0.005*12", unit="epoch"),
        ["HD801 error @1"],
        "HD801",
    ),
    "mem late": (
        log("loss: 3..2~0.02*200", "gpu_mem: 10e9~0.001*100, 10e9..20e9~0.001*100", every=10),
        ["HD802 error @1020"],
        "HD802",
    ),
    "step time": (
        log("loss: 3..2~0.02*60", "step_time: 0.2..1.2~0.02*60", every=10),
        ["HD804 warning @10"],
        "HD804",
    ),
    "ultra nan": (
        log(
            "train/box_loss: 2..1*10, nan*5",
            "train/cls_loss: 3..1*15",
            "train/dfl_loss: 1.5..1*15",
            unit="epoch",
            first=1,
        ),
        ["HD101 error @11"],
        "HD101",
    ),
    "d_loss nan": (
        log("d_loss: 0.7~0.2*10, nan*5", "g_loss: 2~0.3*10, nan*5", every=10),
        ["HD101 error @110"],
        "HD101",
    ),
    "megatron nan iters": (
        log("lm loss: 3..2~0.02*60", "number of nan iterations: 0*30, 3*30", every=10),
        ["HD102 error @310"],
        "HD102",
    ),
    "rising from the first epoch on": (
        log(
            "Total Loss: 6.49, 9.1, 14.2, 20.3, 26.19",
            "CPE Loss: 0*5",
            "Total Grad Norm: 4970000, 5100000, 4800000, 5300000, 5000000",
            unit="epoch",
        ),
        ["HD104 error @2", "HD106 error @1"],
        "HD106",
    ),
    "a divergence somebody restarted from": (
        log(
            "loss: 4..1.5~0.03*80, 9~0.03*60, 1.6..1.3~0.03*60",
            every=10,
            restart={140: 700},
        ),
        ["HD104 error @810"],
        "HD104",
    ),
}
HEALTHY: dict[str, Log] = {
    "overfit zero": log(
        "loss: 2.0..0~0.02*50, 0*20", "grad_norm: 1..0.001~0.2*70", every=10, signals=HF
    ),
    "hf healthy": log(
        "loss: 3..1.5~0.05*100",
        "grad_norm: 2..0.8~0.3*100",
        "learning_rate: 0..5e-5*10, 5e-5..0*90",
        every=10,
        signals=HF,
        digits=7,
    ),
    "fp16 healthy": log(
        "loss: 3..1.5~0.05*100",
        "grad_norm: inf*2, 2..0.8~0.3*60, inf, 1~0.2*37",
        "loss_scale: 65536*2, 16384*60, 8192*38",
        every=10,
    ),
    "epoch healthy 5": log("loss: 1.2, 0.9, 0.8, 0.7, 0.72", unit="epoch"),
    "epoch up a bit": log("loss: 1.2, 0.9, 0.8, 0.7, 0.72, 1.1, 0.7,0.6,0.65", unit="epoch"),
    "spike": log("loss: 3..2~0.02*60, 9, 5, 3, 2~0.02*40", every=10),
    "kl anneal": log(
        "loss: 6.5..3~0.05*100", "kl_loss: 0*40, 0.1..1*60", "rec_loss: 6..2~0.05*100", every=10
    ),
    "aux 0": log("loss: 6.5..3~0.05*100", "aux_loss: 0*100", "lm_loss: 6..2~0.05*100", every=10),
    "clip sat learns": log(
        "loss: 2.3..1~0.03*200", "grad_norm: 500~0.3*200", every=10, max_grad_norm=1.0
    ),
    "post clip": log("loss: 2.3..1~0.03*60", "grad_norm: 1*40, 0.8~0.1*20", every=10),
    "linear to zero": log("loss: 3..2~0.02*60", "lr: 1e-3..0*60", every=10),
    "rerun from scratch": log(
        "loss: 3..2~0.02*40, 3..2.5~0.02*20",
        "lr: 1e-3..1e-4*40, 1e-3..5e-4*20",
        every=10,
        restart={40: 10},
    ),
    "overlap resume": log(
        "loss: 3..2~0.02*40, 2.2..1.8~0.02*20",
        "lr: 1e-3..1e-4*40, 3e-4..1e-5*20",
        every=10,
        restart={40: 300},
    ),
    "cosine restarts": log(
        "loss: 3..2~0.02*60", "lr: 1e-3..1e-5*20, 1e-3..1e-5*20, 1e-3..1e-5*20", every=10
    ),
    "few skips": log(
        "loss: 3..2~0.02*60",
        every=10,
        events=[LogEvent(0, "scaler-skip")] * 5 + [LogEvent(30, "scaler-skip")],
    ),
    "mem plateau": log("loss: 3..2~0.02*60", "gpu_mem: 10e9*10,14e9~0.001*50", every=10),
    "rl": log("policy_loss: 0.01~5*100", "loss: 0.02~8*100", "reward: 1~3*100", every=10),
    "gan": log("d_loss: 0.7~0.9*100", "g_loss: 2~0.8*100", every=1),
    "fall 11 to 2": log(
        "loss: 11,9,7.5,6,5,4.4,4,3.6,3.3,3,2.8,2.7,2.6,2.5,2.4,2.3,2.2,2.1,2.05,2", every=10
    ),
    "one row": log("loss: 2.0"),
    "convergence flat": log("loss: 2..0.5*20, 0.5~0.02*100", "grad_norm: 1~0.2*120", every=10),
    "late const": log("loss: 2..0.0001*20, 0.0001*100", "grad_norm: 1~0.2*120", every=10, digits=4),
    "warmup spike": log(
        "loss: 11,10.5,10.8,14,9,8,7..3~0.05*60",
        "grad_norm: 10,20,80,100,30,5,3~0.3*60",
        "lr: 0..1e-3*20, 1e-3..0*46",
        every=10,
    ),
    "norm falls": log("loss: 11..3~0.05*60", "grad_norm: 100..1~0.3*60", every=10),
    "resumed flat": log("loss: 1.85~0.01*100", "lr: 1e-4..0*100", every=10, first=50000),
    "data change": log("loss: 3..1.5~0.03*60, 4..1.6~0.03*20, 1.6..1.3~0.03*60", every=10),
    "data change end": log("loss: 3..1.5~0.03*60, 4..2.2~0.03*14", every=10),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_right_code_at_the_right_step(name: str) -> None:
    case, expected, first = FAULTY[name]
    report = diagnosed(case)
    assert sorted(told(report)) == sorted(expected)
    assert report.causes[0].code == first
    assert report.fails("error") == any("error" in line for line in expected)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_is_left_alone(name: str) -> None:
    report = diagnosed(HEALTHY[name])
    assert told(report) == []
    assert report.verdict == "healthy"


def test_the_advice_fits() -> None:
    first = diagnosed(log("loss: nan*5", "grad_norm: nan*5"))
    said = " ".join(remedy.text for item in first.findings for remedy in item.remedies)
    assert "learning rate is not the cause" in said
    assert "Lower the learning rate" not in said
    masked = diagnosed(FAULTY["hf masked"][0]).findings
    assert any("logging_nan_inf_filter" in item.text for found in masked for item in found.remedies)


def test_the_source_says_what_it_hides() -> None:
    report = diagnosed(HEALTHY["post clip"])
    assert told(report, "info") == ["HD002 info @10"]
    assert "HD207" in {item.code for item in report.not_run}
