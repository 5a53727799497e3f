"""Parameters of every sort: tied, frozen, added late, gone, sparse, complex, half precision."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import all_finite, column_by_name, headers_of, setups_of, steps_of
from support.trainings import Net, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn

from headway import Guard

STEPS = 14
BAD = 11

Step = Callable[[float], None]


def assert_bad_step_leaves_no_trace(
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Callable[[Any], Tensor]]],
    data: Iterable[Any],
    factor: float = math.nan,
    **options: Any,
) -> Guard:
    """A run with a bad step, against one that never had that batch."""
    (model, optimizer, loss_of), (clean, clean_optimizer, clean_loss_of) = make(), make()
    with Guard(model, optimizer, **options) as guard:
        for number, batch in enumerate(guard(data)):
            before = state_of(model, optimizer)
            (loss_of(batch) * (factor if number == BAD else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
                continue
            clean_loss_of(batch).backward()
            clean_optimizer.step()
            clean_optimizer.zero_grad()
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer), f"@{number}")
        assert [action.step for action in guard.actions] == [BAD]
    return guard


def tokens(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 20, (6,), generator=generator) for _ in range(count)]


def test_sparse_and_dense_gradients_together(tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, lambda ids: model(ids).pow(2).mean()

    assert_bad_step_leaves_no_trace(make, tokens(STEPS), run_dir=tmp_path)
    first = column_by_name(steps_of(tmp_path)[0], "param/grad_norm", headers_of(tmp_path)[-1])
    model, _, loss_of = make()
    loss_of(tokens(1)[0]).backward()
    expected = {name: p.grad.to_dense().norm().item() for name, p in model.named_parameters()}
    assert first == pytest.approx(expected, rel=1e-4)


def test_sparse_rows_that_repeat_are_added_up_before_they_are_measured(tmp_path: Path) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, run_dir=tmp_path):
        model(torch.tensor([1, 1, 1, 2])).sum().backward()
        optimizer.step()
    expected = math.sqrt(3 * 3.0**2 + 3 * 1.0**2)
    assert steps_of(tmp_path)[0].values["grad_norm"] == pytest.approx(expected)


class Tied(nn.Module):
    """Input and output embeddings are one and the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.body = nn.Linear(4, 4)
        self.out = nn.Linear(4, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.body(self.embed(ids)))


def test_tied_weights_are_one_parameter(tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = Tied()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        return model, optimizer, lambda ids: nn.functional.cross_entropy(model(ids), ids)

    assert_bad_step_leaves_no_trace(make, tokens(STEPS), run_dir=tmp_path)
    assert list(headers_of(tmp_path)[-1].names("param")) == [
        "embed.weight",
        "body.weight",
        "body.bias",
    ]


def test_frozen_parameters_stay_out_of_it(tmp_path: Path) -> None:
    def make() -> Any:
        model = make_net()
        model.inner.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        return model, optimizer, lambda batch: squared_error(model, batch)

    frozen = make_net().inner.weight.detach().clone()
    guard = assert_bad_step_leaves_no_trace(make, batches(STEPS), run_dir=tmp_path)
    assert {found.code for found in guard.findings} == {"HD101", "HD201"}
    facts = setups_of(tmp_path, "parameters")[0].facts
    names = facts["names"]
    assert {names[at] for at in facts["trainable"]} == {
        name for name in names if not name.startswith("inner")
    }
    column = column_by_name(steps_of(tmp_path)[0], "param/grad_norm", headers_of(tmp_path)[-1])
    assert set(column) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert torch.equal(frozen, make_net().inner.weight)


class Growing(Net):
    """Gets one more layer in the middle of a training."""

    def grow(self) -> nn.Linear:
        torch.manual_seed(5)
        self.more = nn.Linear(1, 1)
        return self.more

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return self.more(y) if hasattr(self, "more") else y


def growing(seed: int = 0) -> Growing:
    torch.manual_seed(seed)
    return Growing()


@pytest.mark.parametrize("bad", [13, 25], ids=["before it is looked for", "later"])
def test_parameters_added_late_have_their_name_and_are_guarded(bad: int, tmp_path: Path) -> None:
    model = growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(120))):
            if number == 12:
                optimizer.add_param_group({"params": model.grow().parameters(), "lr": 1e-3})
            before = state_of(model, optimizer)
            (squared_error(model, batch) * (math.nan if number == bad else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == bad:
                assert_same(before, state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [bad]
    names = headers_of(tmp_path)[-1].names("param")
    assert list(names) == [name for name, _ in model.named_parameters()]
    assert names[-2:] == ("more.weight", "more.bias")
    spoiled = column_by_name(steps_of(tmp_path)[bad], "param/grad_norm", headers_of(tmp_path)[-1])
    assert {"more.weight", "more.bias"} <= set(spoiled)
    first, last = (setups_of(tmp_path, "parameters")[at].facts for at in (0, -1))
    assert len(last["optimized"]) == len(first["optimized"]) + 2


def test_a_part_unfrozen_later_is_guarded(tmp_path: Path) -> None:
    model = make_net()
    model.inner.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(120))):
            if number == 5:
                model.inner.requires_grad_(True)
            before = state_of(model, optimizer)
            (squared_error(model, batch) * (math.nan if number == BAD else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [BAD]
    column = column_by_name(steps_of(tmp_path)[10], "param/grad_norm", headers_of(tmp_path)[-1])
    assert {"inner.weight", "inner.bias"} <= set(column)
    trainable = [len(setup.facts["trainable"]) for setup in setups_of(tmp_path, "parameters")]
    assert trainable == [4, 6]


def test_a_parameter_gone_from_the_model_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A head replaced after the optimizer was built: the old one trains nothing any more."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer, run_dir=tmp_path) as guard, caplog.at_level(logging.WARNING):
        for number, batch in enumerate(guard(batches(310))):
            if number == 3:
                model.head = nn.Linear(12, 1)
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    said = [text for text in caplog.messages if "no longer part of the model" in text]
    assert len(said) == 1
    assert "head.weight and 1 more" in said[0]
    assert len(steps_of(tmp_path)) == 310
    assert guard.actions == []


def test_parameters_the_model_does_not_know_are_numbered(tmp_path: Path) -> None:
    model = make_net()
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD(
        [{"params": model.parameters()}, {"params": [temperature]}], lr=0.01
    )
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(3)):
            (squared_error(model, batch) * temperature).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert headers_of(tmp_path)[-1].names("param")[-1] == "group1.0"


def test_one_optimizer_that_trains_two_halves_in_turn(tmp_path: Path) -> None:
    """No parameter has a gradient in two steps running: every loss is recorded all the same."""
    halves = [make_net(seed) for seed in (0, 1)]
    model = nn.ModuleList(halves)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    expected = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(8))):
            loss = squared_error(halves[number % 2], batch)
            loss.backward()
            expected.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    assert [step.values.get("loss") for step in steps_of(tmp_path)] == expected


class Spectral(nn.Module):
    """A filter in the frequency domain: its weight is complex."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=6))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_complex_parameters(name: str, factor: float, tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = Spectral()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
        return model, optimizer, lambda batch: squared_error(model, batch)

    assert_bad_step_leaves_no_trace(make, batches(STEPS), factor, run_dir=tmp_path)
    model, _, loss_of = make()
    loss_of(batches(1)[0]).backward()
    total = math.sqrt(sum(p.grad.abs().pow(2).sum().item() for p in model.parameters()))
    assert steps_of(tmp_path)[0].values["grad_norm"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adam fused"])
def test_weights_of_other_precision(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to(dtype)
        kind = {"SGD": torch.optim.SGD}.get(name, torch.optim.Adam)
        optimizer = kind(model.parameters(), lr=1e-2, fused="fused" in name)
        return (
            model,
            optimizer,
            lambda batch: squared_error(model, [part.to(dtype) for part in batch]),
        )

    assert_bad_step_leaves_no_trace(make, batches(STEPS), run_dir=tmp_path)
    assert setups_of(tmp_path, "parameters")[0].facts["dtypes"][0] == str(dtype)[6:]


def test_a_norm_beyond_the_reach_of_half_precision_is_still_a_number(tmp_path: Path) -> None:
    """300 gradients of 1000 each: the norm of float16 gradients is summed in float32."""
    model = nn.Linear(30_000, 1, bias=False).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        (model.weight.float() * 1000).sum().backward()
        optimizer.step()
        assert guard.actions == []
    expected = 1000 * math.sqrt(30_000)
    assert steps_of(tmp_path)[0].values["grad_norm"] == pytest.approx(expected, rel=1e-3)
    assert expected > torch.finfo(torch.float16).max


def test_mixed_precisions_in_one_model() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        body, head = nn.Linear(6, 8).bfloat16(), nn.Linear(8, 1).double()
        model = nn.ModuleList([body, head])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        def loss_of(batch: Any) -> Tensor:
            return head(body(batch[0].bfloat16()).double()).pow(2).mean()

        return model, optimizer, loss_of

    assert_bad_step_leaves_no_trace(make, batches(STEPS))


def test_a_healthy_half_precision_run_stays_finite() -> None:
    model = make_net().bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for x, y in guard(batches(40)):
            squared_error(model, (x.bfloat16(), y.bfloat16())).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert guard.actions == []
    assert all_finite(state_of(model, optimizer))
