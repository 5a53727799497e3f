"""A step that is run again prints, logs and draws nothing a second time."""

from __future__ import annotations

import logging
import sys
import threading

import pytest
import torch
from torch import Tensor, nn

from headway import Guard
from headway.rerun.sandbox import silenced

tqdm = pytest.importorskip("tqdm").tqdm

BAD = 2
WHERE = ("stdout", "stderr", "log", "outer", "inner", "fresh")


def batches() -> list[Tensor]:
    found = [torch.full((4, 3), float(number + 1)) for number in range(4)]
    found[BAD][1] = 0.0
    return found


def train(guard: Guard, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    log = logging.getLogger("training")
    still = {"mininterval": 1e9, "miniters": 1_000_000}  # drawn when asked to, not by the clock
    outer = tqdm(guard(batches()), **still)
    inner = tqdm(total=4, **still)
    for number, x in enumerate(outer):
        loss = (model(x).sum(dim=1) * x.sum(dim=1).log()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"stdout {number}")
        print(f"stderr {number}", file=sys.stderr)
        log.warning("log %d", number)
        outer.set_postfix_str(f"outer {number}")
        inner.update()
        inner.set_postfix_str(f"inner {number}")
        with tqdm(total=1, desc=f"fresh {number}", leave=False, **still):
            pass
    assert inner.n == len(batches())


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> str:
    torch.manual_seed(0)
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("training").addHandler(handler)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Guard(model, optimizer) as guard:
        train(guard, model, optimizer)
        assert guard.explanations[0].step == BAD
        assert guard.explanations[0].passes > 2
    logging.getLogger("training").removeHandler(handler)
    read = capsys.readouterr()
    return read.out + read.err


@pytest.mark.parametrize("where", WHERE)
def test_the_output_of_a_step_appears_once(where: str, shown: str) -> None:
    assert shown.count(f"{where} {BAD}") == 1


def test_later_output_appears(shown: str) -> None:
    assert all(f"{where} {BAD + 1}" in shown for where in WHERE)


def test_other_threads_still_log(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("of the script")
    with caplog.at_level(logging.INFO), silenced():
        log.info("of the step")
        thread = threading.Thread(target=log.info, args=("of a tracker",))
        thread.start()
        thread.join()
    log.warning("afterwards")
    assert [record.getMessage() for record in caplog.records] == ["of a tracker", "afterwards"]
