"""`headway scan` and `headway export` as they are typed."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pytest
from support.checkpoint_files import hf_run, safetensors, weights


@pytest.fixture
def broken(tmp_path):
    return hf_run(tmp_path / "run", saves=(100, 200, 300), bad_from=270, last=340)


def test_the_page_of_a_broken_run(invoke, broken):
    result = invoke("scan", broken)
    assert result.exit_code == 1
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert any("; most likely cause: HD701 nonfinite-checkpoint" in line for line in lines[-8:])
    assert any("clean" in line and line.endswith("checkpoint-200") for line in lines)
    assert any("NaN or Inf" in line and line.endswith("checkpoint-300") for line in lines)
    assert any(line.startswith("Last clean:") for line in lines)
    assert lines[-1] == f"Next: headway scan {broken} --last-good"


def test_no_finding_has_the_position_of_a_file_as_step(invoke, tmp_path):
    hf_run(tmp_path / "run", saves=(100, 200), last=240)
    safetensors(tmp_path / "bad.safetensors", weights(7, bad=64))
    result = invoke("scan", tmp_path, "--format", "json")
    found = json.loads(result.stdout)["findings"]
    assert {item["code"] for item in found} >= {"HD701", "HD301"}
    assert [item["step"] for item in found] == [None] * len(found)


def test_the_page_of_a_clean_file(invoke, tmp_path):
    path = safetensors(tmp_path / "model.safetensors", weights(0))
    result = invoke("scan", path)
    assert result.exit_code == 0
    assert "headway: healthy" in result.stdout.splitlines()
    assert "Next: headway diagnose" in result.stdout


def test_the_last_good_one_for_a_shell(invoke, broken):
    result = invoke("scan", broken, "--last-good")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{broken / 'checkpoint-200'}\n"


def test_there_is_no_good_one(invoke, broken):
    result = invoke("scan", broken / "checkpoint-300", "--last-good")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "is clean" in result.stderr


def test_json(invoke, broken):
    told = json.loads(invoke("scan", broken, "--format", "json").stdout)
    assert list(told) == [
        *("schema", "tool", "version", "command", "verdict"),
        *("coverage", "causes", "findings", "not_run", "sources"),
    ]
    assert told["command"] == "scan"
    assert told["causes"][0]["code"] == "HD701"
    assert told["findings"][0]["where"]["module"] == "layers.2.weight"
    assert [item["clean"] for item in told["sources"]] == [True, True, False]


def test_github_and_sarif(invoke, broken):
    assert "HD701" in invoke("scan", broken, "--format", "github").stdout
    told = json.loads(invoke("scan", broken, "--format", "sarif").stdout)
    assert told["runs"][0]["results"][0]["ruleId"] in ("HD301", "HD701")


def test_which_severity_fails(invoke, broken):
    assert invoke("scan", broken, "--fail-on", "never").exit_code == 0
    assert invoke("scan", broken, "--ignore", "HD701,HD301").exit_code == 0
    assert invoke("scan", broken, "--select", "HD705").exit_code == 0


@pytest.mark.parametrize("command", ["scan", "diagnose"])
def test_what_cannot_be_read_gets_one_line_and_2(invoke, tmp_path, command):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 9)
    for name in ("empty", "empty.bin", "noise.bin", "missing"):
        result = invoke(command, tmp_path / name)
        assert result.exit_code == 2, name
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1, result.stderr
        assert name in result.stderr


def test_a_good_path_beside_a_bad_one(invoke, broken, tmp_path):
    result = invoke("scan", broken, tmp_path / "missing")
    assert result.exit_code == 2
    assert "HD701" in result.stdout
    assert "does not exist" in result.stderr


def test_diagnose_draws_the_loss(invoke, broken):
    result = invoke("diagnose", broken)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("loss  "))
    assert "×" in lines[at]
    assert lines[at + 1].strip() == "▲ step 270"
    assert lines[at].index("×") == lines[at + 1].index("▲")
    assert "read as hf-trainer: 30 of 30 lines used" in result.stdout


def test_torch_is_never_imported(broken, tmp_path):
    """Whatever is read: logs, checkpoints, a whole folder."""
    words = [["scan", str(broken)], ["diagnose", str(broken)]]
    code = (
        "import sys\n"
        "from headway.cli.main import cli\n"
        f"for args in {words!r}:\n"
        "    try: cli.main(args, prog_name='headway')\n"
        "    except SystemExit: pass\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert result.stderr.strip() == "False True"
    assert "HD701" in result.stdout


def test_export(invoke, broken, tmp_path):
    out = tmp_path / "run.csv"
    assert invoke("export", broken, "-o", out).exit_code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 34
    assert rows[0]["step"] == "10"
    assert rows[-1]["loss"] == "NaN"
    for wrong in ("run.txt", "missing/run.csv"):
        result = invoke("export", broken, "-o", tmp_path / wrong)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def test_export_to_parquet_needs_its_extra(invoke, broken, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("export", broken, "-o", tmp_path / "run.parquet")
    assert result.exit_code == 2
    assert "pip install 'headway[parquet]'" in result.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
@pytest.mark.parametrize("command", ["scan", "diagnose"])
def test_what_may_not_be_read(invoke, tmp_path, command):
    (tmp_path / "closed").mkdir(mode=0)
    file = tmp_path / "model.safetensors"
    safetensors(file, weights(0)).chmod(0)
    for name in ("closed", "model.safetensors"):
        result = invoke(command, tmp_path / name)
        assert result.exit_code == 2
        assert result.stderr.lower().endswith("permission denied\n")
        assert result.stderr.count("\n") == 1
    (tmp_path / "closed").chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name here")
@pytest.mark.parametrize("command", ["scan", "diagnose"])
def test_a_pipe_is_not_waited_for(invoke, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    result = invoke(command, tmp_path / "pipe")
    assert result.exit_code == 2
    assert "neither a file nor a folder" in result.stderr
