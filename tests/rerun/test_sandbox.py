"""Looking into a step changes nothing: what its passes write is put back, whatever it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway import Guard, Policy
from headway.torch_adapters.modes import WriteUndo

BAD, SAMPLE = 3, 1


def data() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(4, 4, generator=generator) for _ in range(6)]
    found[BAD][SAMPLE] = 0.0
    return found


def unit(h: Tensor) -> Tensor:
    return h / h.norm(dim=1, keepdim=True)


def teacher_and_bank(replay: bool) -> list[Tensor]:
    """A loop that moves a teacher, fills a bank and sums up its losses."""
    torch.manual_seed(0)
    student, teacher = nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    bank, total = torch.zeros(8, 3), torch.zeros(())
    with Guard(student, optimizer, policy=Policy(replay=replay)) as guard:
        for x in guard(data()):
            z, t = unit(student(x)), F.normalize(teacher(x), dim=1).detach()
            loss = (z - t).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                teacher.weight.mul_(0.9).add_(student.weight, alpha=0.1)
            bank[:4] += t
            total += loss.detach().nan_to_num()
        assert len(guard.explanations) == replay
    return [student.weight.detach(), teacher.weight.detach(), bank, total]


@pytest.mark.parametrize("compiled", [False, True])
def test_what_the_body_moves_is_moved_once(compiled: bool) -> None:
    if compiled:  # somewhere in this process
        torch.compile(torch.sin, backend="eager")(torch.ones(2))
    for one, other in zip(teacher_and_bank(True), teacher_and_bank(False), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_stay_as_they_were(dtype: torch.dtype) -> None:
    """The trial in float32 must not let the optimizer step."""
    model = nn.Linear(4, 4).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(2, 4) for _ in range(3)]
    batches[-1] = torch.full((2, 4), 1e30 if dtype is torch.bfloat16 else 3e4)
    with Guard(model, optimizer) as guard:
        for x in guard(batches):
            before = model.weight.detach().clone()
            loss = (model(x.to(dtype)) ** 2).float().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (told,) = guard.explanations
    assert any(trial.key == "fp32" and trial.tried != "not tried" for trial in told.trials)
    assert torch.equal(model.weight.detach(), before)


def test_gradients_that_the_loop_made_bad_are_no_transient_fault() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.ones(2, 4), torch.tensor(weight)) for weight in (1.0, 1.0, 0.0)]
    with Guard(model, optimizer) as guard:
        for x, weight in guard(batches):
            (weight * model(x)).mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= parameter.grad.norm()
            optimizer.step()
            optimizer.zero_grad()
    (told,) = guard.explanations
    assert told.nature == "deterministic"
    assert told.origin is not None
    assert told.origin.op == "div"
    assert told.origin.place is not None
    assert told.origin.place.source == "parameter.grad /= parameter.grad.norm()"
    assert told.cure is not None


def progress(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:  # noqa: UP028
        yield item


def test_a_generator_between_guard_and_loop_is_seen_through() -> None:
    """Given its batch once more, the loop would count it."""
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted = []
    with Guard(model, optimizer) as guard:
        for i, x in enumerate(progress(guard(data()))):
            unit(model(x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            counted.append(i)
        assert len(guard.explanations) == 1
    assert counted == list(range(6))


def test_a_cure_reaches_what_runs_inside_of_backward() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.ones(2, 4), torch.tensor(weight)) for weight in (1.0, 1.0, 0.0)]
    with Guard(model, optimizer) as guard:
        for x, weight in guard(batches):
            h = model(x)
            h.register_hook(lambda g: g / g.norm())
            (weight * h).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    cure = guard.explanations[0].cure
    assert cure is not None
    assert cure.key == "guard-input"


class TestWritten:
    def test_only_older_memory_is_put_back(self) -> None:
        old, row = torch.zeros(4), torch.zeros(2, 3)
        written = WriteUndo()
        with written:
            new = old + 1
            new.mul_(5)
            old.add_(1)
            row[1] = 7.0
            row.mul_(2)
        written.put_back()
        assert old.tolist() == [0.0] * 4
        assert row.tolist() == [[0.0] * 3] * 2
        assert new.tolist() == [5.0] * 4

    def test_a_view_of_older_memory_is_older(self) -> None:
        old = torch.zeros(6)
        written = WriteUndo()
        with written:
            old.view(2, 3).reshape(3, 2)[0].fill_(1.0)
            old[::2].add_(1.0)
        written.put_back()
        assert old.tolist() == [0.0] * 6
