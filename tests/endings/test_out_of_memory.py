"""Memory that runs out: what was asked for, what would have fitted, which remedies help."""

from __future__ import annotations

import json
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from support import warm_python
from torch import Tensor, nn

from headway import Guard
from headway.guard.endings.failure import Failure, FailureMoment, read_stack
from headway.guard.endings.memory_trial import MemoryTrial
from headway.guard.endings.out_of_memory import recognise_out_of_memory
from headway.guard.memory.micro_batches import ModelCall
from headway.torch_adapters.device_failure import device_memory
from headway.torch_adapters.device_failure.device_memory import (
    find_module_call,
    is_device_out_of_memory,
    is_host_out_of_memory,
    named_bytes,
    requested_bytes,
)
from headway.torch_adapters.frames import clear_frames

CUDA = (
    "CUDA out of memory. Tried to allocate 1.83 GiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 134.60 GiB is free. 2.80 GiB allowed; Of the allocated memory 2.12 GiB is allocated by "
    "PyTorch, and 26.51 MiB is reserved by PyTorch but unallocated."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)"
)


def test_messages_of_the_allocators_are_read() -> None:
    assert requested_bytes(CUDA) == int(1.83 * 2**30)
    assert named_bytes(CUDA, "allowed") == int(2.8 * 2**30)
    assert named_bytes(CUDA, "is reserved by PyTorch but unallocated") == int(26.51 * 2**20)
    assert requested_bytes(CPU) == 4_000_000_000
    assert requested_bytes("something else") is None
    assert device_memory.device_in(CUDA) == 0


@pytest.mark.parametrize(
    ("error", "device", "host"),
    [
        (torch.OutOfMemoryError(CUDA), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True, False),
        (RuntimeError(CPU), False, True),
        (MemoryError(), False, True),
        (OSError(12, "Cannot allocate memory"), False, True),
        (RuntimeError(), False, False),
        (ValueError("out of memory"), False, False),
    ],
)
def test_which_memory_ran_out(error: Exception, *, device: bool, host: bool) -> None:
    assert is_device_out_of_memory(error) == device
    assert is_host_out_of_memory(error) == host


class Block(nn.Module):
    """Runs out of memory for more than 10 rows, or 40 when its activations are recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        recomputed = "forward" in vars(self)
        if x.shape[0] > (40 if recomputed else 10) and torch.is_grad_enabled():
            raise torch.OutOfMemoryError(CUDA)
        return self.linear(x)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def trial(model: nn.Module, rows: int) -> Any:
    call = ModelCall(model, model, (torch.ones(rows, 4),), {})
    return MemoryTrial(call, 0, release=lambda: None).run()


def test_the_largest_batch_and_the_remedies_are_measured() -> None:
    model = Stack()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = trial(model, 32)
    assert 8 <= result.fits <= 10
    cured = [item["text"] for item in result.remedies if item["tested"] and item["cured"]]
    assert any("gradient accumulation" in text for text in cured)
    assert any('classes="Block"' in text for text in cured)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_remedy_that_does_not_help_is_marked() -> None:
    result = trial(Stack(), 64)
    (checkpointing,) = [item for item in result.remedies if "Block" in item["text"]]
    assert checkpointing["tested"] is True
    assert checkpointing["cured"] is False


def test_evaluation_without_a_graph() -> None:
    result = trial(Stack().eval(), 32)
    assert any("no_grad" in item["text"] and item["cured"] for item in result.remedies)


def test_a_batch_that_fits_now_shows_a_leak() -> None:
    result = trial(Stack(), 6)
    assert result.fits == 6
    assert result.remedies == []


def test_the_failing_call_is_found_in_the_traceback() -> None:
    model = Stack()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model(torch.ones(11, 4))
    found = find_module_call(caught.value)
    assert found is not None
    assert found[0] is model
    assert found[1][0].shape == (11, 4)


def test_the_finding_has_all_of_it() -> None:
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)

    def train() -> None:
        with guard:
            for x in guard([torch.ones(8, 4), torch.ones(32, 4)]):
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(torch.OutOfMemoryError):
        train()
    (finding,) = [item for item in guard.findings if item.code == "HD808"]
    assert finding.step == 1
    assert str(finding.where.file).endswith("test_out_of_memory.py")
    assert finding.evidence["requested_bytes"] == int(1.83 * 2**30)
    assert finding.evidence["rows"] == 32
    assert finding.remedies[0].cured is True
    assert not [item for item in guard.findings if item.code == "HD911"]


SCRIPT = """
import resource
import torch
from torch import nn

model = nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(4, 1000)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
    if step == 3:
        {fails}  # FAILS
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "fails",
    ["torch.ones(10**9)", "bytearray(10**10)", "[0] * 10**10"],
    ids=["torch", "bytes", "list"],
)
def test_the_memory_of_the_host_really_runs_out(tmp_path: Path, fails: str) -> None:
    script = textwrap.dedent(SCRIPT).format(fails=fails)
    (tmp_path / "train.py").write_text(script)
    done = warm_python.run(
        [sys.executable, "-m", "headway", "run", "--format", "json", "--out", "run", "train.py"],
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "failed"
    (finding,) = [item for item in report["findings"] if item["code"] == "HD809"]
    lines = script.splitlines()
    assert lines[finding["where"]["line"] - 1].endswith("# FAILS")
    assert finding["evidence"]["memory"]["tree"] > 0
    if fails.startswith("torch"):
        assert finding["evidence"]["requested_bytes"] == 4 * 10**9


def test_pinned_memory_is_memory_of_the_host() -> None:
    def pin(text: str) -> None:
        raise RuntimeError(text)

    try:
        pin("CUDA error: out of memory")  # torch.empty(rows, pin_memory=True)
    except RuntimeError as error:
        place = next(item for item in reversed(read_stack(error)) if item.function != "pin")
        failure = Failure(error, FailureMoment(), None, [place])
        kind, facts = recognise_out_of_memory(failure) or ("", {})
    assert (kind, facts["memory_of"]) == ("out-of-memory", "host")


def test_cleared_frames_hold_nothing() -> None:
    """Before Python 3.13, a copy of the local variables that was read once stays with the frame."""

    def run_out() -> None:
        scores = torch.ones(3)
        alive.append(weakref.ref(scores))
        raise torch.OutOfMemoryError("CUDA out of memory")

    alive: list[weakref.ref[Tensor]] = []
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run_out()
    assert "scores" in caught.traceback[-1].frame.f_locals
    clear_frames(caught.value)
    assert alive[0]() is None
