"""A recorded loss can be computed again: at the same weights exactly, at others as the code would.

Every case is a function of some weights, in a style that people write. It is recorded once; then
the weights are changed, and what the tape gives is compared with what the function itself gives
from the same random state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holdfast.preflight.playing import CannotPlay, Player
from holdfast.preflight.tape import Tape

Loss = Callable[[], Tensor]
Case = tuple[nn.Module, Loss]


@contextmanager
def tape(**limits: int) -> Iterator[Tape]:
    made = Tape(**limits)
    made.install()
    try:
        yield made
    finally:
        made.uninstall()
        assert torch._C._len_torch_dispatch_stack() == 0


def recorded(loss: Loss, made: Tape) -> Tensor:
    made.begin()
    root = loss()
    made.pause()
    made.add_root(root)
    return root


def moved(model: nn.Module, by: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(noise.to(parameter.dtype), alpha=by)


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


@case
def plain() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, lambda: F.cross_entropy(model(X), Y)


@case
def dropout() -> Case:
    model = nn.Sequential(
        nn.Linear(6, 32), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(32, 3)
    )
    return model, lambda: nn.CrossEntropyLoss()(model(X), Y)


@case
def batch_norm() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    return model, lambda: F.nll_loss(model(X).log_softmax(-1), Y)


@case
def lstm() -> Case:
    model = nn.ModuleDict({"rnn": nn.LSTM(6, 5, 2, batch_first=True), "head": nn.Linear(5, 3)})
    x = torch.randn(4, 7, 6)
    return model, lambda: F.cross_entropy(model["head"](model["rnn"](x)[0][:, -1]), Y[:4])


@case
def gru_cell_loop() -> Case:
    model = nn.GRUCell(6, 5)
    x = torch.randn(4, 7, 6)

    def loss() -> Tensor:
        out = torch.zeros(4, 7, 5)
        state = torch.zeros(4, 5)
        for t in range(7):
            state = model(x[:, t], state)
            out[:, t] = state
        return out.square().mean()

    return model, loss


@case
def attention() -> Case:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    x = torch.randn(3, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return model, lambda: model(x, src_mask=mask).pow(2).sum()


@case
def conv() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    x = torch.randn(5, 1, 8, 8)
    return model, lambda: F.cross_entropy(model(x), Y[:5])


@case
def embedding_bag_of_words() -> Case:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    x = torch.randint(0, 10, (12, 3))
    return model, lambda: F.cross_entropy(model(x), Y)


@case
def index_put_and_views() -> Case:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        h = model(X)
        half = h[:, :3]
        half.mul_(2.0)
        table = torch.zeros(12, 6)
        table[torch.arange(0, 12, 2)] = h[::2]
        table.view(-1)[0] = h.sum()
        return (table.t() @ h).abs().mean() + h.chunk(2, 1)[1].var()

    return model, loss


@case
def written_by_hand() -> Case:
    model = nn.Linear(6, 1)
    target = X.sum(1)

    def loss() -> Tensor:
        error = model(X).squeeze(1) - target
        huber = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5)
        keep = (error > -0.5).float()
        return (huber * keep).sum() / 12

    return model, loss


@case
def autocast() -> Case:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(X), Y)

    return model, loss


@case
def checkpointed() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    return model, lambda: F.cross_entropy(
        model[3](checkpoint(lambda x: model[2](model[1](model[0](x))), X, use_reentrant=False)), Y
    )


@case
def checkpointed_reentrant() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = X.clone().requires_grad_()

    def loss() -> Tensor:
        return F.cross_entropy(model[2](checkpoint(model[:2], x, use_reentrant=True)), Y)

    return model, loss


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        scaled = x * 2
        return scaled * scaled

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]


@case
def own_function() -> Case:
    model = nn.Linear(6, 3)
    square = _Square.apply
    return model, lambda: _Square.apply(model(X)).mean() + square(model(X)).std()


@case
def gumbel() -> Case:
    model = nn.Linear(6, 3)
    return model, lambda: (F.gumbel_softmax(model(X), tau=0.7) * X[:, :3]).sum()


@case
def reparametrised() -> Case:
    model = nn.Linear(6, 4)

    def loss() -> Tensor:
        mean, log_variance = model(X).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return (z**2).mean() + kl

    return model, loss


@case
def tied_and_complex() -> Case:
    model = nn.Linear(6, 6)
    return model, lambda: torch.fft.rfft(model(X) @ model.weight.t()).abs().log1p().mean()


@case
def gradient_penalty() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss() -> Tensor:
        x = X.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return ((grad.norm(dim=1) - 1) ** 2).mean()

    return model, loss


@pytest.mark.parametrize("name", CASES)
def test_the_same_loss_and_the_loss_at_other_weights(name: str) -> None:
    torch.manual_seed(0)
    with tape() as made:
        model, loss = CASES[name]()
        state = torch.get_rng_state()
        buffers = {key: value.clone() for key, value in model.named_buffers()}
        root = recorded(loss, made)
        assert made.trouble is None
        player = Player(made, made.roots)
        after = {key: value.clone() for key, value in model.named_buffers()}
        drawn = torch.get_rng_state()
        assert player.play() == [float(root.detach())]
        moved(model)
        [played] = player.play()
        assert torch.equal(torch.get_rng_state(), drawn)
        for key, value in model.named_buffers():
            assert torch.equal(value, after[key]), key
            value.copy_(buffers[key])
    torch.set_rng_state(state)
    expected = float(loss().detach())
    assert played == pytest.approx(expected, rel=1e-6)
    assert played != pytest.approx(float(root.detach()), rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_recording_changes_neither_loss_nor_gradients(name: str) -> None:
    outcomes = []
    for with_tape in (False, True):
        torch.manual_seed(0)
        with tape() as made:
            model, loss = CASES[name]()
            root = recorded(loss, made) if with_tape else loss()
            root.backward()
        grads = [p.grad.to_dense() for p in model.parameters() if p.grad is not None]
        outcomes.append((root.detach(), grads, list(model.buffers()), torch.get_rng_state()))
    (root, grads, buffers, state), (root_, grads_, buffers_, state_) = outcomes
    assert torch.equal(root, root_)
    assert all(torch.equal(a, b) for a, b in zip(grads, grads_, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, buffers_, strict=True))
    assert torch.equal(state, state_)


# What autograd takes for a constant stays one.


def test_detached_parts_and_targets_made_without_gradients_are_kept() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)

    def loss() -> Tensor:
        with torch.no_grad():
            target = model(X) * 0.5 + 1
        out = model(X)
        return ((out - target) ** 2).mean() + (out.detach() * out).mean()

    with tape() as made:
        root = recorded(loss, made)
        player = Player(made, made.roots)
        assert player.play() == [float(root.detach())]
        with torch.no_grad():
            target, old = model(X) * 0.5 + 1, model(X)
        moved(model)
        out = model(X)
        expected = ((out - target) ** 2).mean() + (old * out).mean()
        assert player.play()[0] == pytest.approx(float(expected.detach()), rel=1e-6)


def test_drawn_actions_are_kept() -> None:
    torch.manual_seed(0)
    policy = nn.Linear(6, 3)
    with tape() as made:
        made.begin()
        chosen = torch.distributions.Categorical(logits=policy(X))
        action = chosen.sample()
        root = -(chosen.log_prob(action) * X[:, 0]).mean()
        made.pause()
        made.add_root(root)
        player = Player(made, made.roots)
        moved(policy)
        expected = -(
            torch.distributions.Categorical(logits=policy(X)).log_prob(action) * X[:, 0]
        ).mean()
        assert player.play()[0] == pytest.approx(float(expected.detach()), rel=1e-6)


def test_a_constant_that_is_overwritten_later_is_kept_as_it_was() -> None:
    model = nn.Linear(6, 1)
    buffer = X.clone()
    with tape() as made:
        made.begin()
        root = model(buffer).mean()
        buffer.zero_()
        made.pause()
        made.add_root(root)
        assert Player(made, made.roots).play() == [float(root.detach())]


# Several losses on one tape.


def test_two_losses_of_one_graph() -> None:
    model = nn.Linear(6, 3)
    with tape() as made:
        made.begin()
        out = model(X)
        first, second = out.square().mean(), out.abs().mean()
        made.pause()
        made.add_root(first)
        first.backward(retain_graph=True)
        made.go_on()
        total = second + 0.1 * first.detach()
        made.pause()
        made.add_root(total)
        expected = [float(first.detach()), float(total.detach())]
        assert Player(made, made.roots).play() == expected
        assert Player(made, made.roots[1:]).play() == expected[1:]


def test_what_is_added_to_a_loss_after_its_backward_pass_is_no_part_of_it() -> None:
    model = nn.Linear(6, 3)
    with tape() as made:
        made.begin()
        loss = model(X).square().mean()
        made.pause()
        made.add_root(loss)
        value = float(loss.detach())
        loss.backward()
        made.go_on()
        with torch.no_grad():
            loss += 5.0
        made.pause()
        assert Player(made, made.roots).play() == [value]


def test_changing_a_loss_on_the_way_tells_its_weight_in_the_total() -> None:
    model = nn.Linear(6, 3)
    with tape() as made:
        made.begin()
        loss = F.cross_entropy(model(X), Y)
        number = made.number_of(loss)
        root = loss / 4 + 1.0
        made.pause()
        made.add_root(root)
        assert number is not None
        player = Player(made, made.roots)
        [shifted] = player.play({number: lambda value: value + 0.5})
        assert shifted - float(root.detach()) == pytest.approx(0.125, rel=1e-5)


# What it declines.


def test_a_graph_from_before_is_declined() -> None:
    model = nn.Linear(6, 3)
    out = model(X)
    with tape() as made:
        recorded(lambda: out.square().mean(), made)
        with pytest.raises(CannotPlay, match="before the step"):
            Player(made, made.roots)


def test_weights_changed_in_between_are_declined() -> None:
    model = nn.Linear(6, 3)

    def loss() -> Tensor:
        out = model(X)
        with torch.no_grad():
            model.weight.clamp_(-0.1, 0.1)
        return out.square().mean() + 0 * model(X).sum()

    with tape() as made:
        recorded(loss, made)
        with pytest.raises(CannotPlay, match="weights are changed"):
            Player(made, made.roots)


def test_an_input_changed_after_the_forward_pass_is_declined() -> None:
    model = nn.Linear(6, 3)
    buffer = X.clone()
    with tape() as made:
        recorded(lambda: model(buffer).square().mean(), made)
        buffer.zero_()
        with pytest.raises(CannotPlay, match="changed after"):
            Player(made, made.roots)


def test_a_tape_that_grows_too_long_is_given_up() -> None:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        h = X
        for _ in range(50):
            h = model(h).tanh()
        return h.mean()

    with tape(most_ops=20) as made:
        recorded(loss, made)
        with pytest.raises(CannotPlay, match="more ops"):
            Player(made, made.roots)


def test_another_dispatch_mode_is_left_alone() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Linear(6, 3)
    with tape() as made:
        with FlopCounterMode(display=False):
            made.begin()
            model(X)
        assert made.trouble is not None
        made.begin()
        with FlopCounterMode(display=False):
            loss = model(X).square().mean()
            made.pause()  # not ours to leave yet
            made.add_root(loss)
        assert Player(made, made.roots).play() == [float(loss.detach())]
        made.end()
