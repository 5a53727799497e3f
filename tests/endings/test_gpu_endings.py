"""Endings of runs on a GPU: each is called by its code and its line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.cuda.set_per_process_memory_fraction(0.02)


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.layers = nn.ModuleList([Layer() for _ in range(8)])
        self.out = nn.Linear(64, classes)

    def forward(self, ids):
        x = self.table(ids)  # LOOKUP
        for layer in self.layers:
            x = layer(x)
        return self.out(x.mean(1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))  # ACTIVATIONS


def batches(rows=(64,) * 8, length=32):
    return [(torch.randint(0, 100, (n, length)), torch.randint(0, 10, (n,))) for n in rows]


def train(data, model=None):
    model = (model or Net()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for ids, labels in data:
        ids, labels = ids.cuda(), labels.cuda()
        out = model(ids)  # FORWARD
        loss = nn.functional.cross_entropy(out, labels)  # LOSS
        optimizer.zero_grad()
        loss.backward()  # BACKWARD
        optimizer.step()
        print(float(loss))  # WAITS
    return model


class Listed(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, at):
        return self.data[at]


def loader(data):
    return DataLoader(Listed(data), batch_size=None)


"""

ENDINGS: dict[str, tuple[str, str, str]] = {
    # name: (script, code, mark of the true line)
    "one-large-batch": ("train(loader(batches((64,) * 5 + (30000,))))", "HD808", "ACTIVATIONS"),
    "first-batch-too-large": ("train(loader(batches((30000,))))", "HD808", "ACTIVATIONS"),
    "growth": (
        "kept = []\nmodel = Net().cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
        "for ids, labels in batches((256,) * 400):\n"
        "    loss = nn.functional.cross_entropy(model(ids.cuda()), labels.cuda())\n"
        "    loss.backward(retain_graph=True)  # GROWS\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n    kept.append(loss)\n",
        "HD808",
        "GROWS",
    ),
    "evaluation-with-graph": (
        "model = train(loader(batches()))\nmodel.eval()\n"
        "outs = []\nfor ids, _ in batches((4000,) * 40):\n"
        "    outs.append(model(ids.cuda()))  # EVALUATES\n",
        "HD808",
        "ACTIVATIONS",
    ),
    "optimizer-states": (
        "model = nn.Linear(12000, 22000, bias=False).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.ones(1, 12000, device='cuda')).sum().backward()\n"
        "optimizer.step()  # STEPS\n",
        "HD808",
        "STEPS",
    ),
    "model-too-large": (
        "train(loader(batches()))\nbig = nn.Linear(40000, 40000)\nbig.cuda()  # MOVES\n",
        "HD808",
        "MOVES",
    ),
    "token-past-the-table": (
        "data = batches()\ndata[5][0][3, 5] = 100\ntrain(loader(data))",
        "HD912",
        "LOOKUP",
    ),
    "label-past-the-classes": (
        "data = batches()\ndata[0][1][6] = 10\ntrain(loader(data))",
        "HD912",
        "LOSS",
    ),
    "gather-past-the-end": (
        "class Picking(Net):\n"
        "    def forward(self, ids):\n"
        "        out = super().forward(ids)\n"
        "        return out.gather(1, ids[:, :10])  # PICKS\n"
        "data = batches()\nfor ids, _ in data:\n    ids.clamp_(max=9)\n"
        "data[4][0][2, 1] = 11\ntrain(loader(data), Picking())",
        "HD912",
        "PICKS",
    ),
    "not-a-probability": (
        "class Scored(Net):\n"
        "    def forward(self, ids):\n"
        "        p = torch.sigmoid(super().forward(ids)) + (ids.max() > 200)\n"
        "        target = torch.zeros_like(p)\n"
        "        loss = nn.functional.binary_cross_entropy(p, target)  # SCORES\n"
        "        return p + loss\n"
        "data = batches()\nmodel = Scored()\nmodel.table = nn.Embedding(300, 64)\n"
        "data[5][0][0, 0] = 250\ntrain(loader(data), model)",
        "HD912",
        "SCORES",
    ),
    "crash-on-the-device": (
        "data = batches()\ntrain(loader(data), nn.Sequential(Net(), nn.Linear(11, 10)))",
        "HD911",
        "FORWARD",
    ),
}

LIVING = {
    "healthy": "train(loader(batches()))",
    "caught": (
        "try:\n    train(loader(batches((30000,))))\n"
        "except torch.OutOfMemoryError:\n    torch.cuda.empty_cache()\n"
        "train(loader(batches()))"
    ),
}


def headway(tmp_path: Path, command: str, script: str) -> tuple[int, dict[str, Any], str, str]:
    file = tmp_path / "train.py"
    file.write_text(HEAD + script + "\n")
    extra = ["--out", str(tmp_path / "run")] if command == "run" else ["--max-steps", "100"]
    done = subprocess.run(
        [sys.executable, "-m", "headway", command, "--format", "json", *extra, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, "HEADWAY_DEBUG": "1"},
    )
    assert done.stdout, f"{done.stderr[:3000]} … {done.stderr[-1000:]}"
    return done.returncode, json.loads(done.stdout), done.stderr, file.read_text()


def line_of(text: str, mark: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


def record(name: str, found: dict[str, Any]) -> None:
    """Where $OUT is set, the findings are kept as a result of this machine."""
    if "OUT" in os.environ:
        with open(os.path.join(os.environ["OUT"], "gpu_endings.jsonl"), "a") as file:
            file.write(json.dumps({"ending": name, **found}) + "\n")


@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending_is_called_by_its_code_and_line(tmp_path: Path, name: str) -> None:
    script, code, mark = ENDINGS[name]
    status, report, errors, text = headway(tmp_path, "run", script)
    found = next((item for item in report["findings"] if item["code"] == code), {})
    record(name, {"status": status, "verdict": report["verdict"], "finding": found})
    assert report["verdict"] == "failed", report["findings"]
    assert found, [(item["code"], item["message"]) for item in report["findings"]]
    assert found["where"]["line"] == line_of(text, mark), found
    assert status == 1, errors[-2000:]
    assert "headway itself failed" not in errors
    if code == "HD912" and mark != "SCORES":
        assert found["where"]["sample"] is not None


@pytest.mark.parametrize("name", LIVING)
def test_a_living_run_is_not_called_dead(tmp_path: Path, name: str) -> None:
    status, report, errors, _ = headway(tmp_path, "run", LIVING[name])
    record(name, {"status": status, "verdict": report["verdict"]})
    assert status == 0, errors[-2000:]
    assert report["verdict"] != "failed", report["findings"]
    assert not [item for item in report["findings"] if item["code"] in ("HD808", "HD911", "HD912")]


def test_a_large_batch_has_tested_remedies(tmp_path: Path) -> None:
    _, report, _, _ = headway(tmp_path, "run", ENDINGS["one-large-batch"][0])
    found = next(item for item in report["findings"] if item["code"] == "HD808")
    evidence = found["evidence"]
    assert 0 < evidence["rows_that_fit"] < 30000
    assert evidence["requested_bytes"] > 0
    assert evidence["lines"][0]["bytes"] > 2**20
    assert {item["kind"] for item in evidence["holders"]} >= {"weights", "optimizer states"}
    assert [item for item in found["remedies"] if item["tested"] and item["cured"]]


def test_check_survives_a_device_assert(tmp_path: Path) -> None:
    status, report, errors, text = headway(tmp_path, "check", ENDINGS["token-past-the-table"][0])
    assert status == 3, errors[-2000:]
    assert "headway itself failed" not in errors
    found = next(item for item in report["findings"] if item["code"] == "HD912")
    assert found["where"]["line"] == line_of(text, "LOOKUP")


def test_a_plain_script_with_a_guard_ends_in_good_order(tmp_path: Path) -> None:
    script = (
        "import atexit, headway\natexit.register(print, 'handlers ran')\n"
        "data = batches()\ndata[5][0][3, 5] = 100\nmodel = Net().cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)\n"
        "guard = headway.Guard(model, optimizer, run_dir='run')\n"
        "for ids, labels in guard(loader(data)):\n"
        "    loss = nn.functional.cross_entropy(model(ids.cuda()), labels.cuda())\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "print(float(loss))\n"
    )
    (tmp_path / "train.py").write_text(HEAD + script)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-3000:]
    assert "handlers ran" in done.stdout
    assert "headway itself failed" not in done.stderr
    read = subprocess.run(
        [sys.executable, "-m", "headway", "diagnose", "run", "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    report = json.loads(read.stdout)
    found = next(item for item in report["findings"] if item["code"] == "HD912")
    assert found["where"]["line"] == line_of(HEAD, "LOOKUP")
