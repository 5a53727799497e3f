"""Settings beside a run, whatever file they are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.logs.setting_names import named_settings
from headway.postmortem.run_settings import settings_in, yaml_subset


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"learning_rate": 5e-5, "max_grad_norm": 1.0}, {"learning_rate": 5e-5, "max_norm": 1.0}),
        ({"lr": "3e-4", "gradient_clip_val": 0}, {"learning_rate": 3e-4}),
        ({"trainer": {"gradient_clip_val": 0.5}}, {"max_norm": 0.5}),
        ({"optimizer": {"grad_clip_norm": 0.5}}, {"max_norm": 0.5}),
        ({"gradient_clip_norm": 10.0}, {"max_norm": 10.0}),
        ({"fp16": True, "bf16": False}, {"precision": "fp16"}),
        ({"precision": "16-mixed"}, {"precision": "16-mixed"}),
        ({"mixed_precision": "no"}, {}),
        ({"learning_rate": {"desc": None, "value": 0.1}}, {"learning_rate": 0.1}),
        ({"learning_rate": "auto", "batch_size": None, "seed": float("nan")}, {}),
        ({"lr": 1, "learning_rate": 2}, {"learning_rate": 2}),
        ({}, {}),
    ],
)
def test_other_names_become_ours(raw: dict[str, Any], expected: dict[str, Any]) -> None:
    assert named_settings(raw) == expected


def test_yaml_lines() -> None:
    text = (
        "# a comment\nlr: 0.001 # why\nmodel:\n  name: 'x'\n  deep:\n    dim: 8\nlist:\n- 1\n"
        "flag: true\nnone: null\n"
    )
    assert yaml_subset(text) == {
        "lr": 0.001,
        "model": {"name": "x", "deep": {"dim": 8}},
        "list": {},
        "flag": True,
        "none": None,
    }


def test_the_first_file_that_says_a_thing_is_right(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"lr": 1e-3}))
    (tmp_path / "hparams.yaml").write_text("lr: 0.5\nwarmup_steps: 100\n")
    (tmp_path / "config.json").write_text("{broken")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("optim:\n  grad_clip: 2.0\n")
    assert settings_in([tmp_path, tmp_path / "missing"]) == {
        "learning_rate": 1e-3,
        "warmup_steps": 100,
        "max_norm": 2.0,
    }
