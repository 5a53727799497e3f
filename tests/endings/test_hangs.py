"""Scripts that hang or lose a rank are explained by rank, collective and line; living ones are not
reported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.hang_runs import (
    PATIENCE,
    SCRIPTS,
    Expected,
    RankProcesses,
    diagnose_hang,
    diagnose_loss,
)

import headway
from headway.core.findings import Severity
from headway.guard.endings.watchdog import HUNG_STATUS

HANGING = sorted(path.stem for path in SCRIPTS.glob("[a-z]*.py"))
ENDING = {"killed_rank", "leaving_early", "metric_of_another_size", "raising_rank"}
"""Scripts whose ranks end by themselves."""
LIVING = sorted(path.stem for path in (SCRIPTS / "living").glob("*.py"))
QUICK = "raising_rank"
SLOW = "metric_on_one_rank"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in (QUICK, SLOW) else pytest.mark.nightly)
        for name in HANGING
    ],
)
def test_the_rank_the_collective_and_the_line_are_named(name: str, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.py"
    expected = Expected.of(script)
    if name in ENDING:
        report, output = diagnose_loss(script, tmp_path / "run")
        # The error of a survivor names the lost connection, and no code of headway as its place.
        assert "error when running the callback" not in "".join(output)
    else:
        report, event = diagnose_hang(script, tmp_path / "run")
        assert event["idle_s"] <= 3 * event["usual_s"] + 10
    assert report.verdict == "failed"
    (finding,) = [item for item in report.findings if item.code == expected.code]
    assert (finding.where.rank or 0) == expected.rank
    if expected.line is not None:
        assert finding.where.line == expected.line
    if expected.op is not None:
        assert expected.op in finding.message
    # Whatever else was found is a consequence or the reason, never a second cause.
    assert len([cause for cause in report.causes if cause.root.severity >= Severity.ERROR]) == 1


@pytest.mark.parametrize("kind", ["RuntimeError", "RankLost"])
def test_the_error_of_a_survivor_does_not_name_our_callback(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(
            f"Got the following error when running the callback: {kind}: [pair.cc:553] Connection "
            "closed by peer\n\nAt:\n  /x/headway/torch_adapters/local_gradients.py(237): <lambda>\n"
        )

    monkeypatch.setattr(torch.autograd, "backward", fail)
    model = torch.nn.Linear(2, 1)
    with headway.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1)) as guard:
        with pytest.raises(RuntimeError) as raised:
            model(torch.ones(1, 2)).sum().backward()
        assert str(raised.value) == "[pair.cc:553] Connection closed by peer"
        assert guard.findings == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", LIVING)
def test_a_living_run_is_not_reported(name: str, tmp_path: Path) -> None:
    size = 1 if name == "one_process" else 2
    with RankProcesses(SCRIPTS / "living" / f"{name}.py", tmp_path / "run", size) as ranks:
        assert ranks.wait() == [0] * size
    report = headway.diagnose(tmp_path / "run")
    assert [item.code for item in report.findings if item.severity >= Severity.WARNING] == []
    assert report.verdict == "healthy"
    if name not in ("pause_and_go_on",):
        assert ranks.events("hang") == []


@pytest.mark.nightly
def test_hang_timeout_ends_all_ranks_so_that_torchrun_starts_them_again(tmp_path: Path) -> None:
    script = SCRIPTS / "sleeping_rank.py"
    with RankProcesses(script, tmp_path / "run", 2, HANG_TIMEOUT="9") as ranks:
        assert ranks.wait() == [HUNG_STATUS] * 2
    report = headway.diagnose(tmp_path / "run")
    assert report.verdict == "failed"
    assert [item.code for item in report.findings if item.severity >= Severity.WARNING] == ["HD914"]


@pytest.mark.nightly
def test_a_script_that_knows_nothing_of_headway_is_watched_by_run(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import threading, torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(1000):\n"
        "    model(torch.randn(4, 2)).mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    if step == 40:\n"
        "        threading.Event().wait()\n"
    )
    settings = tmp_path / "headway.toml"
    settings.write_text("[policy]\nhang_timeout = 9\n")
    options = ["--out", str(tmp_path / "run"), "--config", str(settings)]
    done = subprocess.run(
        [sys.executable, "-m", "headway", "run", str(script), *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == HUNG_STATUS
    (finding,) = headway.diagnose(tmp_path / "run").findings
    assert (finding.code, finding.where.line) == ("HD914", 9)
