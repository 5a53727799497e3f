"""`headway check` and `headway run`: a script as it is, from the shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support import warm_python
from support.signals import default_interrupt

Invoke = Callable[..., Result]

HEALTHY = """
import argparse, os, sys
import torch, torch.nn as nn, torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
print("file", os.path.basename(__file__), "argv", sys.argv[1:], "name", __name__)
torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x.sum(dim=1) > 0).long()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(args.epochs):
    for at in torch.randperm(256).split(32):
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f}")
print("the end")
"""
FORGETFUL = HEALTHY.replace("        optimizer.zero_grad()\n", "")


def shell(
    *arguments: str, cwd: Path, timeout: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, "-m", "headway", *arguments],
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HEADWAY_STRICT": "1", **env},
    )


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_a_healthy_script(tmp_path: Path) -> None:
    script(tmp_path, HEALTHY)
    done = shell("check", "train.py", "-v", "--max-steps", "3", "--", "--epochs", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "file train.py argv ['--epochs', '3'] name __main__" in done.stdout
    lines = done.stdout.splitlines()
    assert "headway: healthy: no problems found in 3 steps" in lines
    assert "3 steps cannot show what develops over hundreds of steps" in done.stdout
    assert lines[-1] == "Next: headway run train.py -- --epochs 3"
    assert "stopped after 3 steps (--max-steps)" in done.stdout
    assert "322 trainable, 0 frozen" in done.stdout or "354 parameters" in done.stdout
    assert "Adam group 0" in done.stdout
    assert "Resident memory  forward" in done.stdout
    assert "✓ loss" in done.stdout
    assert "epoch" not in done.stdout.replace("--epochs", ""), "it was stopped before that"


@pytest.mark.slow
def test_json_has_stdout_to_itself(tmp_path: Path) -> None:
    script(tmp_path, FORGETFUL)
    done = shell("check", "train.py", "--max-steps", "5", "--format", "json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert "name __main__" in done.stderr
    assert (report["schema"], report["command"], report["verdict"]) == (1, "check", "findings")
    assert report["causes"][0]["code"] == "HD206"
    assert report["steps"] == 5
    [group] = report["inventory"]["optimizers"][0]["groups"]
    assert group["lr"] == 0.01
    assert set(report["memory"]["phases"]) == {"forward", "backward", "update"}
    [found] = [item for item in report["findings"] if item["code"] == "HD206"]
    assert found["where"]["file"].endswith("train.py")
    assert "loss.backward()" in FORGETFUL.splitlines()[found["where"]["line"] - 1]


@pytest.mark.parametrize(("form", "sign"), [("github", "::error "), ("sarif", '"$schema"')])
def test_other_forms(tmp_path: Path, invoke: Invoke, form: str, sign: str) -> None:
    script(tmp_path, FORGETFUL)
    done = invoke("check", "train.py", "--max-steps", "4", "--format", form)
    assert done.exit_code == 1, done.stderr
    assert sign in done.stdout
    assert "train.py" in done.stdout


@pytest.mark.slow
def test_the_command_of_the_documents(tmp_path: Path) -> None:
    script(tmp_path, HEALTHY)
    done = shell(
        *[
            "check",
            "train.py",
            "--max-steps",
            "3",
            "--amp-dtype",
            "bf16",
            "--grad-log-interval",
            "1",
        ],
        *["--no-detect-anomaly", "--clip-grad-norm", "1.0"],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert any(line.startswith("torch ") and " on cpu" in line for line in told)
    steps = [line for line in told if line.startswith("step")]
    assert len(steps) == 3
    assert all("loss" in line and "grad norm" in line for line in steps)
    assert all(re.search(r"  zero 0/\d+  NaN/Inf 0/\d+$", line) for line in steps)


@pytest.mark.slow
def test_memory_by_epoch(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        x = torch.randn(64, 8)
        data = TensorDataset(x, (x[:, 0] > 0).long())
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for epoch in range(3):
            for inputs, labels in DataLoader(data, 16, shuffle=True):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    )
    done = shell("check", "train.py", "--max-steps", "12", "-v", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = re.search(r"^Resident memory by epoch  (.*)$", done.stdout, re.MULTILINE)
    assert told is not None
    assert len(told.group(1).split(", ")) == 3


@pytest.mark.slow
def test_a_module_with_relative_imports(tmp_path: Path) -> None:
    script(tmp_path, "", "pkg/__init__.py")
    script(tmp_path, "WIDTH = 8\n", "pkg/sizes.py")
    text = HEALTHY.replace("import argparse", "from .sizes import WIDTH\nimport argparse")
    script(tmp_path, text.replace("nn.Linear(8, 32)", "nn.Linear(WIDTH, 32)"), "pkg/train.py")
    done = shell("check", "-m", "pkg.train", "--", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "argv ['--epochs', '1']" in done.stdout
    assert "Next: headway run -m pkg.train -- --epochs 1" in done.stdout


def test_a_script_that_crashes(tmp_path: Path) -> None:
    text = HEALTHY.replace(
        "        optimizer.step()\n", "        optimizer.step()\n        1 / 0\n"
    )
    script(tmp_path, text)
    done = shell("check", "train.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "ZeroDivisionError" in done.stderr
    assert "1 / 0" in done.stderr
    assert "headway/" not in done.stderr, "no frames of ours"
    assert "headway: failed; 1 error; most likely cause: HD911 script-crashed" in done.stdout


@pytest.mark.slow
def test_a_script_that_leaves(tmp_path: Path) -> None:
    script(tmp_path, "import sys\nsys.exit('no data')\n")
    done = shell("check", "train.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "no data" in done.stderr
    assert "no optimizer step was reached" in done.stdout


NEVER_STEPS = """
import torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(1, 4)).sum().backward()
print("done")
"""


def test_a_run_of_a_script_that_never_steps(tmp_path: Path, invoke: Invoke) -> None:
    script(tmp_path, NEVER_STEPS)
    done = invoke("run", "train.py")
    assert done.exit_code == 0, "the script did what it does, and nothing was found"
    lines = done.stdout.splitlines()
    assert lines[:2] == ["done", "headway: nothing was guarded"]
    said = " ".join(" ".join(lines[2:-1]).split())
    assert said.startswith("no optimizer step was reached: backward() ran once")
    assert lines[-1] == "Next: headway check train.py"


def test_a_run_that_must_be_guarded(tmp_path: Path, invoke: Invoke) -> None:
    script(tmp_path, NEVER_STEPS)
    done = invoke("run", "--require-guard", "train.py")
    assert done.exit_code == 1
    assert "nothing was guarded" in done.stdout
    made = json.loads(invoke("run", "--format", "json", "--out", "r", "train.py").stdout)
    assert [item["code"] for item in made["findings"]] == ["HD003"]
    later = invoke("diagnose", "r")
    assert later.exit_code == 1
    assert "HD003 nothing-guarded" in later.stdout


def test_a_script_that_never_steps(tmp_path: Path, invoke: Invoke) -> None:
    script(tmp_path, "print('hello')\n")
    done = invoke("check", "train.py")
    assert done.exit_code == 2
    assert "nothing could be checked" in done.stdout
    assert "no optimizer step was reached" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "no script given"),
        (["check", "nowhere.py"], "does not exist"),
        (["check", "."], "is a folder"),
        (["check", "train.py", "--epochs", "3"], "--epochs"),
        (["check", "train.py", "--max-steps", "0"], "--max-steps"),
    ],
)
def test_usage(tmp_path: Path, invoke: Invoke, arguments: list[str], words: str) -> None:
    script(tmp_path, HEALTHY)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("epoch")]


@pytest.mark.slow
def test_run_guards_the_whole_training_and_changes_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, HEALTHY)
    plain = warm_python.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    done = shell("run", "train.py", "--out", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == losses(plain.stdout) != []
    assert "the end" in done.stdout
    assert "16 steps" in done.stdout
    read = shell("diagnose", "kept", "--format", "json", cwd=tmp_path)
    assert json.loads(read.stdout)["verdict"] == "healthy"


def test_run_holds_a_bad_update_back(tmp_path: Path) -> None:
    bad = HEALTHY.replace(
        "        optimizer.zero_grad()\n",
        "        optimizer.zero_grad()\n"
        "        loss = loss * (float('nan') if at[0] == 7 else 1)\n",
    )
    script(tmp_path, bad.replace("torch.randperm(256)", "torch.arange(256).roll(249)"))
    for args, status in (((), 0), (("--fail-on", "error"), 1)):  # alone, the script's own status
        done = shell("run", "train.py", "--out", f"kept{status}", *args, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        assert "HD101" in done.stdout
        assert "update skipped" in done.stdout
        assert all("nan" not in line for line in losses(done.stdout))


OWN_DATA = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.rand(64, 3) + 0.5
step = 0
while step < 12:
    step += 1
    x = data[torch.randint(0, 64, (4,))]
    if step == 7:
        x[1] = 0.0
    loss = (model(x.log()) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {loss.item()}")
"""


@pytest.mark.slow
def test_run_names_the_line_where_the_loop_makes_its_own_data(tmp_path: Path) -> None:
    script(tmp_path, OWN_DATA)
    done = shell("run", "train.py", "--out", "kept", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stderr)) == 12
    (found,) = [item for item in json.loads(done.stdout)["findings"] if item["code"] == "HD101"]
    assert found["step"] == 6
    where = found["where"]
    assert (where["op"], Path(where["file"]).name) == ("log", "train.py")
    lines = (tmp_path / "train.py").read_text().splitlines()
    assert "x.log()" in lines[where["line"] - 1]
    assert found["remedies"][0]["cured"] is True


@pytest.mark.slow
def test_run_for_machines_has_stdout_to_itself(tmp_path: Path) -> None:
    script(tmp_path, HEALTHY)
    done = shell("run", "train.py", "--out", "kept", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["command"], told["verdict"], told["steps"]) == ("run", "healthy", 16)
    assert told["actions"] == []
    assert Path(told["run_dir"]) == tmp_path / "kept"
    assert losses(done.stderr), "what the script prints goes beside it"


@pytest.mark.slow
def test_ctrl_c_tells_what_was_seen(tmp_path: Path) -> None:
    endless = HEALTHY.replace("range(args.epochs)", "iter(int, 1)") + "\n"
    script(tmp_path, endless.replace("    print(f", "    open('alive', 'w').close()\n    print(f"))
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "check", "train.py", "--max-steps", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=default_interrupt,
    )
    wait_for(tmp_path / "alive")
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "info HD915 interrupted" in told
    assert "stopped by SIGINT (Ctrl-C)" in told
    assert "headway: interrupted" in told
    assert re.search(r"^interrupted after [1-9]\d* steps", told, re.MULTILINE)


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail("it never began")


def test_python_gets_the_same_findings() -> None:
    import torch
    from torch import nn

    import headway

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch = (torch.randn(16, 4), torch.randint(0, 3, (16,)))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    report = headway.preflight(model, optimizer, nn.CrossEntropyLoss(), batch)
    assert report.verdict == "healthy", report.findings
    assert report.command == "preflight"
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state
    assert torch.equal(random, torch.get_rng_state())

    def own(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    assert headway.preflight(model, optimizer, own, batch).verdict == "healthy"
    frozen = nn.Linear(4, 3).requires_grad_(False)
    frozen.bias.requires_grad_(True)
    held = torch.optim.SGD(frozen.parameters(), lr=0.1)
    found = headway.preflight(frozen, held, nn.CrossEntropyLoss(), batch)
    assert "HD410" in [item.code for item in found.findings]
    with pytest.raises(headway.HeadwayError, match="a torch optimizer"):
        headway.preflight(model, None, nn.CrossEntropyLoss(), batch)
