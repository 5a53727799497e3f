"""A device-side assert is explained by running the step on the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.guard.endings.device_assert import HostInputs, run_on_host
from headway.torch_adapters.device_failure.host_only import FailingOp, cuda_on_host
from headway.torch_adapters.device_failure.lost_device import is_device_error
from headway.torch_adapters.tensor_values import is_on_host

SCRIPT = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 8)
        self.out = nn.Linear(8, 10)

    def forward(self, ids):
        return self.out(self.table(ids).mean(1))  # line 14


assert torch.cuda.is_available()
device = torch.device("cuda")
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
good = torch.zeros(64, 7, dtype=torch.long)
loader = DataLoader(TensorDataset(good, good[:, 0]), batch_size=8, pin_memory=True)
for ids, labels in loader:
    ids, labels = ids.cuda(non_blocking=True), labels.to("cuda:0")
    noise = torch.zeros(8, 10, device="cuda")
    loss = nn.functional.cross_entropy(model(ids) + noise, labels)  # line 26
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
open(sys.argv[1], "w").write("trained")
"""


def _inputs(tmp_path: Path, *batches: Any) -> HostInputs:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    argv = [str(tmp_path / "out")]
    started = {"file": str(script), "module": None, "argv": argv, "cwd": str(tmp_path)}
    return HostInputs(started, batches)


def _batch(token: int = 5, label: int = 3) -> tuple[Tensor, Tensor]:
    ids, labels = torch.zeros(8, 7, dtype=torch.long), torch.zeros(8, dtype=torch.long)
    ids[3, 5], labels[6] = token, label
    return ids, labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "line", "op", "value", "position", "limit"),
    [
        (_batch(token=100), 14, "embedding", 100, [3, 5], 100),
        (_batch(label=10), 26, "nll_loss_forward", 10, [6], 10),
    ],
)
def test_the_true_line_is_found(
    tmp_path: Path, batch: Any, line: int, op: str, value: int, position: list[int], limit: int
) -> None:
    found = run_on_host(_inputs(tmp_path, _batch(), batch))
    assert found["found"], found
    assert found["place"]["line"] == line
    assert (found["op"], found["value"], found["position"]) == (op, value, position)
    assert found["limit"] == limit
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_batches_without_a_fault_say_so(tmp_path: Path) -> None:
    found = run_on_host(_inputs(tmp_path, _batch()))
    assert found["why_not"] == "the last batches ran without an error on the host"
    assert not (tmp_path / "out").exists()


def test_a_notebook_has_no_script() -> None:
    assert "notebook" in run_on_host(HostInputs(None))["why_not"]
    assert "notebook" in run_on_host(None)["why_not"]


def test_which_errors_lose_the_device() -> None:
    assert is_device_error(RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel"))
    advice = "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    assert is_device_error(RuntimeError("CUDA error: an illegal memory access" + advice))
    assert not is_device_error(RuntimeError("CUDA error: out of memory" + advice))
    assert not is_device_error(RuntimeError("shape mismatch"))
    assert not is_device_error(ValueError("CUDA error: device-side assert"))


LEAVING = """
import atexit, sys, weakref
import torch
from headway.torch_adapters.device_failure import lost_device

class Batch(torch.Tensor):
    def __del__(self):
        print("destroyed", flush=True)

def work():
    batch = torch.ones(3).as_subclass(Batch)
    lost_device.mark_device_lost()

atexit.register(print, "handlers ran")
work()
lost_device.set_exit_status(3)
sys.exit(0)
"""


@pytest.mark.slow
def test_a_lost_device_ends_the_process_without_destructors() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (3, "handlers ran\n"), done.stderr


def test_only_batches_on_the_host_are_kept() -> None:
    assert is_on_host({"x": torch.ones(2), "name": ["a"]})
    assert not is_on_host([torch.ones(2), torch.ones(2, device="meta")])


def _bad(call: Any) -> Any:
    with FailingOp() as watch:
        with pytest.raises((IndexError, RuntimeError)):
            call()
        return watch.find()


@pytest.mark.parametrize(
    ("call", "op", "value", "position", "limit"),
    [
        (lambda: torch.ones(4, 2)[torch.tensor([0, 9])], "index", 9, (1,), 4),
        (lambda: torch.ones(4, 2)[torch.tensor([0, -5])], "index", -5, (1,), 4),
        (lambda: torch.ones(4, 2).gather(1, torch.tensor([[0], [3]])), "gather", 3, (1, 0), 2),
        (lambda: torch.ones(4).index_select(0, torch.tensor([4])), "index_select", 4, (0,), 4),
        (
            lambda: torch.zeros(4, 3).scatter_(1, torch.tensor([[2], [7]]), 1.0),
            "scatter_",
            7,
            (1, 0),
            3,
        ),
        (
            lambda: torch.nn.functional.binary_cross_entropy(
                torch.tensor([0.5, 1.5]), torch.ones(2)
            ),
            "binary_cross_entropy",
            1.5,
            (1,),
            None,
        ),
    ],
)
def test_the_bad_value_is_found(
    call: Any, op: str, value: float, position: tuple[int, ...], limit: int | None
) -> None:
    found = _bad(call)
    assert (found.op, found.value, found.position) == (op, value, position)
    assert found.limit == limit


def test_ignored_labels_are_not_out_of_range() -> None:
    scores, labels = torch.ones(3, 4), torch.tensor([-100, 2, 4])
    found = _bad(lambda: torch.nn.functional.cross_entropy(scores, labels))
    assert (found.value, found.position) == (4, (2,))


def test_code_for_cuda_runs_on_the_host() -> None:
    before = torch.cuda.is_available()
    with cuda_on_host():
        model = torch.nn.Linear(2, 2).cuda().to("cuda:0")
        out = model(torch.ones(1, 2, device="cuda").pin_memory().to(torch.device("cuda", 0)))
        assert out.device.type == "cpu"
        assert torch.cuda.device_count() == 1
    assert torch.cuda.is_available() == before


CRASHES = """\
import ctypes

def wild():
    ctypes.string_at(0)  # line 4

wild()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_an_access_that_ends_the_process_on_the_host_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CRASHES)
    started = {"file": str(script), "module": None, "argv": [], "cwd": str(tmp_path)}
    found = run_on_host(HostInputs(started, ()))
    assert found["host_error"] == "SIGSEGV, an access outside of its memory"
    assert found["place"]["line"] == 4
