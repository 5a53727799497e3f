"""`Policy(on_oom=…)`: a batch that does not fit runs in micro-batches with the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway import Guard, Policy

SIZES = (8, 20, 20, 6)
"""Rows of the batches; those of 20 do not fit."""


def limit_rows(module: nn.Module, *, forward: int = 10**6, backward: int = 10**6) -> None:
    """Let a layer run out of memory for more rows than that, as a device would."""

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].shape[0] > forward:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def arrive(gradient: Tensor) -> None:
        if gradient.shape[0] > backward:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")

    def after(_: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if first.requires_grad:
            first.register_hook(arrive)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)


class Mlp(nn.Module):
    def __init__(
        self, *, dropout: float = 0.0, norm: Callable[[], nn.Module] = nn.Identity
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 16)
        self.norm = norm()
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(torch.tanh(self.norm(self.inner(x)))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.outer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = F.relu(self.norm(self.inner(x))).mean((2, 3))
        return {"logits": self.outer(features), "features": features}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(5, 12, batch_first=True)
        self.outer = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, (last, _) = self.inner(x)
        return self.outer(states[:, -1]), last[0]


class LanguageModel(nn.Module):
    """Computes its own loss: a mean over the labels that count."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2)
        self.outer = nn.Linear(16, 30)

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.outer(self.inner(self.table(ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class Summed(Mlp):
    """Computes its own loss: a sum over rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(super().forward(x), y, reduction="sum")


def _rows(shape: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, *shape, generator=random), torch.randint(0, 4, (n,), generator=random))
        for n in SIZES
    ]


def _texts() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    batches = []
    for n in SIZES:
        ids = torch.randint(0, 30, (n, 7), generator=random)
        labels = ids.clone()
        for row in range(n):
            labels[row, : row % 5] = -100
        batches.append((ids, labels))
    return batches


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out["logits"] if isinstance(out, dict) else out


CASES: dict[
    str, tuple[Callable[[], nn.Module], Callable[[], Any], Callable[[Any, Any], Tensor]]
] = {
    "mlp": (Mlp, lambda: _rows((6,)), lambda m, b: F.cross_entropy(_first(m(b[0])), b[1])),
    "mlp-sum": (
        Mlp,
        lambda: _rows((6,)),
        lambda m, b: F.cross_entropy(_first(m(b[0])), b[1], reduction="sum"),
    ),
    "cnn": (Cnn, lambda: _rows((2, 6, 6)), lambda m, b: F.cross_entropy(_first(m(b[0])), b[1])),
    "lstm": (Recurrent, lambda: _rows((9, 5)), lambda m, b: F.cross_entropy(m(b[0])[0], b[1])),
    "language-model": (LanguageModel, _texts, lambda m, b: m(*b)[0]),
    "own-sum": (Summed, lambda: _rows((6,)), lambda m, b: m(*b)),
    "contrastive": (  # every sample's loss depends on all others: pieces of the loss would differ
        Mlp,
        lambda: _rows((6,)),
        lambda m, b: torch.logsumexp(m(b[0]) @ m(b[0]).T, 1).mean(),
    ),
}


def train(
    case: str, policy: Policy | None, limit: Callable[[nn.Module], None] = lambda m: None
) -> tuple[list[Tensor], list[float], Guard | None]:
    make, data, compute = CASES[case]
    torch.manual_seed(0)
    model = make().double()
    limit(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [tuple(t.double() if t.is_floating_point() else t for t in pair) for pair in data()]
    guard = None if policy is None else Guard(model, optimizer, policy=policy)
    losses = []
    for batch in batches if guard is None else guard(batches):
        optimizer.zero_grad()
        loss = compute(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if guard is not None:
        guard.close()
    return [p.detach() for p in model.parameters()], losses, guard


SLOW = ("mlp-sum", "cnn", "lstm", "own-sum")
EACH = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]


@pytest.mark.parametrize("case", EACH)
def test_a_healthy_run_is_bit_identical(case: str) -> None:
    plain, with_option = train(case, None), train(case, Policy(on_oom="split"))
    assert plain[1] == with_option[1]
    assert all(map(torch.equal, plain[0], with_option[0]))


@pytest.mark.parametrize(("where", "rows"), [("forward", 10), ("backward", 3)])
@pytest.mark.parametrize("case", EACH)
def test_pieces_give_the_gradient_of_the_whole_batch(case: str, where: str, rows: int) -> None:
    plain = train(case, None)
    split = train(
        case, Policy(on_oom="split"), lambda model: limit_rows(model.inner, **{where: rows})
    )
    assert split[1] == pytest.approx(plain[1], rel=1e-9)
    for one, other in zip(plain[0], split[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    assert split[2] is not None
    (finding,) = [item for item in split[2].findings if item.code == "HD808"]
    assert finding.evidence["action"] == "split"
    assert finding.evidence["survived"] is True


def test_pieces_that_fit_only_before_the_loss_are_halved_in_backward() -> None:
    """What the loss holds is not there yet when a piece is tried."""

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        if args[0].shape[0] > (4 if in_backward else 10):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def limit(model: nn.Module) -> None:
        model.inner.register_forward_pre_hook(before)

    plain, split = train("mlp", None), train("mlp", Policy(on_oom="split"), limit)
    for one, other in zip(plain[0], split[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_run_dies_without_the_option() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        train("mlp", Policy(), lambda model: limit_rows(model.inner, forward=10))


def _one_batch(model: nn.Module, policy: Policy, rows: int = 20) -> tuple[Guard, list[Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [value.clone() for value in model.state_dict().values()]
    guard = Guard(model, optimizer, policy=policy)
    for x, y in guard([(torch.randn(rows, 6), torch.randint(0, 4, (rows,)))]):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    guard.close()
    return guard, before


@pytest.mark.parametrize(
    ("model", "limits", "policy", "reason"),
    [
        (Mlp(norm=lambda: nn.BatchNorm1d(16)), {"forward": 10}, "split", "BatchNorm1d"),
        (Mlp(norm=lambda: nn.BatchNorm1d(16)), {"backward": 10}, "split", "BatchNorm1d"),
        (Mlp(dropout=0.5), {"backward": 10}, "split", "random numbers"),
        (Mlp(), {"forward": 10}, "skip", "on_oom='skip'"),
        (Mlp(), {"backward": 10}, "skip", "on_oom='skip'"),
    ],
)
def test_what_cannot_be_split_is_skipped(
    model: Mlp, limits: dict[str, int], policy: str, reason: str
) -> None:
    """The limit holds without a graph, too, where it is one on the forward pass."""
    limit_rows(model.norm if "forward" in limits else model.inner, **limits)
    guard, before = _one_batch(model, Policy(on_oom=policy))
    assert all(map(torch.equal, before, model.state_dict().values()))
    (finding,) = [item for item in guard.findings if item.code == "HD808"]
    assert finding.evidence["action"] == "skip"
    assert reason in finding.evidence["why"]
    assert str(finding.severity) == "warning"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_every_step_that_cannot_be_split_is_skipped(where: str) -> None:
    model = Mlp(norm=lambda: nn.BatchNorm1d(16))
    limit_rows(model.norm if where == "forward" else model.inner, **{where: 10})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, policy=Policy(on_oom="split"))
    moved = []
    for x in guard([torch.randn(n, 6) for n in (8, 20, 20, 8)]):
        before = model.outer.weight.detach().clone()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        moved.append(not torch.equal(before, model.outer.weight))
    guard.close()
    assert moved == [True, False, False, True]


def test_a_model_of_transformers_is_split() -> None:
    transformers = pytest.importorskip("transformers")
    gradients = []
    for limit in (10**6, 3):
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=2,
            n_head=2,
            n_embd=16,
            vocab_size=50,
            n_positions=16,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        model = transformers.GPT2LMHeadModel(config).double()
        limit_rows(model.transformer.h[1].mlp, backward=limit)
        ids = torch.randint(0, 50, (8, 9), generator=torch.Generator().manual_seed(0))
        labels = ids.clone()
        for row in range(8):
            labels[row, : row % 5] = -100  # the loss is a mean over the labels that count
        with Guard(
            model, torch.optim.SGD(model.parameters()), policy=Policy(on_oom="split")
        ) as guard:
            out = model(input_ids=ids, labels=labels)
            out.loss.backward()
        # No optimizer steps here, which is reported too.
        assert bool({item.code for item in guard.findings} - {"HD003"}) == (limit == 3)
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        # transformers computes the loss in float32
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_dropout_is_split_from_the_next_batch_on() -> None:
    """Masks of a whole batch cannot be drawn again in pieces, those of pieces can."""
    model = Mlp(dropout=0.5)
    limit_rows(model.inner, backward=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, policy=Policy(on_oom="split"))
    moved = []
    for x in guard([torch.randn(20, 6) for _ in range(3)]):
        before = model.outer.weight.detach().clone()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        moved.append(not torch.equal(before, model.outer.weight))
    guard.close()
    assert moved == [False, True, True]


def test_a_model_that_mixes_samples_is_not_split() -> None:
    class Mixing(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) - x.mean(0).sum()

    model = Mixing()
    limit_rows(model.inner, backward=10)
    guard, before = _one_batch(model, Policy(on_oom="split"))
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert "depends on the other samples" in guard.findings[0].evidence["why"]


def test_evaluation_is_split_too() -> None:
    model = Mlp().eval()
    whole = model(torch.ones(20, 6)).detach()
    limit_rows(model.inner, forward=10)
    with (
        Guard(model, torch.optim.SGD(model.parameters()), policy=Policy(on_oom="split")),
        torch.no_grad(),
    ):
        torch.testing.assert_close(model(torch.ones(20, 6)), whole)
    with pytest.raises(torch.OutOfMemoryError):  # the guard is closed
        model(torch.ones(20, 6))


def test_two_backward_passes_over_one_output() -> None:
    gradients = []
    for policy in (Policy(), Policy(on_oom="split")):
        torch.manual_seed(0)
        model = Mlp(dropout=0.5)
        with Guard(model, torch.optim.SGD(model.parameters()), policy=policy):
            out = model(torch.ones(5, 6))
            out.mean().backward(retain_graph=True)
            out.square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_gradients_of_gradients() -> None:
    gradients = []
    for policy in (Policy(), Policy(on_oom="split")):
        torch.manual_seed(0)
        model = Mlp()
        with Guard(model, torch.optim.SGD(model.parameters()), policy=policy):
            loss = model(torch.ones(5, 6)).square().mean()
            first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            sum(g.square().sum() for g in first).backward()  # type: ignore[union-attr]
        gradients.append([p.grad for p in model.parameters()])
    # Two passes go through the model instead of one, so sums are in another order.
    torch.testing.assert_close(*gradients)


def test_inputs_with_gradients_pass_through(caplog: pytest.LogCaptureFixture) -> None:
    model = Mlp()
    x = torch.ones(5, 6, requires_grad=True)
    with Guard(model, torch.optim.SGD(model.parameters()), policy=Policy(on_oom="split")):
        model(x).sum().backward()
    assert x.grad is not None
    assert "does not protect Mlp: its inputs require gradients" in caplog.text


def test_autocast_is_repeated_in_pieces() -> None:
    gradients = []
    for limit in (10**6, 10):
        torch.manual_seed(0)
        model = Mlp()
        limit_rows(model.inner, backward=limit)
        with Guard(model, torch.optim.SGD(model.parameters()), policy=Policy(on_oom="split")):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.linspace(-1, 1, 120).reshape(20, 6)).float().square().mean()
            loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-3)
        assert one is not None
        assert bool(one.abs().sum() > 0)
