"""A recorded loss can be computed again: at the same weights exactly, at others as the code would.

Every case is a function of some weights, in a style that people write. It is recorded once; then
the weights are changed, and what the tape gives is compared with what the function itself gives
from the same random state.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.tape_cases import CASES, X, Y, recorded, tape
from torch import Tensor, nn

from headway.torch_adapters.op_recording.op_replay import CannotReplay, OpReplay


def moved(model: nn.Module, by: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(noise.to(parameter.dtype), alpha=by)


@pytest.mark.parametrize("name", CASES)
def test_the_same_loss_and_the_loss_at_other_weights(name: str) -> None:
    torch.manual_seed(0)
    with tape() as made:
        model, loss = CASES[name]()
        state = torch.get_rng_state()
        buffers = {key: value.clone() for key, value in model.named_buffers()}
        root = recorded(loss, made)
        assert made.trouble is None
        player = OpReplay(made, made.roots)
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
        player = OpReplay(made, made.roots)
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
        player = OpReplay(made, made.roots)
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
        assert OpReplay(made, made.roots).play() == [float(root.detach())]


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
        made.resume()
        total = second + 0.1 * first.detach()
        made.pause()
        made.add_root(total)
        expected = [float(first.detach()), float(total.detach())]
        assert OpReplay(made, made.roots).play() == expected
        assert OpReplay(made, made.roots[1:]).play() == expected[1:]


def test_what_is_added_to_a_loss_after_its_backward_pass_is_no_part_of_it() -> None:
    model = nn.Linear(6, 3)
    with tape() as made:
        made.begin()
        loss = model(X).square().mean()
        made.pause()
        made.add_root(loss)
        value = float(loss.detach())
        loss.backward()
        made.resume()
        with torch.no_grad():
            loss += 5.0
        made.pause()
        assert OpReplay(made, made.roots).play() == [value]


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
        player = OpReplay(made, made.roots)
        [shifted] = player.play({number: lambda value: value + 0.5})
        assert shifted - float(root.detach()) == pytest.approx(0.125, rel=1e-5)


# What it declines.


def test_a_graph_from_before_is_declined() -> None:
    model = nn.Linear(6, 3)
    out = model(X)
    with tape() as made:
        recorded(lambda: out.square().mean(), made)
        with pytest.raises(CannotReplay, match="created before its step"):
            OpReplay(made, made.roots)


def test_weights_changed_in_between_are_declined() -> None:
    model = nn.Linear(6, 3)

    def loss() -> Tensor:
        out = model(X)
        with torch.no_grad():
            model.weight.clamp_(-0.1, 0.1)
        return out.square().mean() + 0 * model(X).sum()

    with tape() as made:
        recorded(loss, made)
        with pytest.raises(CannotReplay, match="weights are changed"):
            OpReplay(made, made.roots)


def test_an_input_changed_after_the_forward_pass_is_declined() -> None:
    model = nn.Linear(6, 3)
    buffer = X.clone()
    with tape() as made:
        recorded(lambda: model(buffer).square().mean(), made)
        buffer.zero_()
        with pytest.raises(CannotReplay, match="changed after"):
            OpReplay(made, made.roots)


def test_a_tape_that_grows_too_long_is_given_up() -> None:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        h = X
        for _ in range(50):
            h = model(h).tanh()
        return h.mean()

    with tape(most_ops=20) as made:
        recorded(loss, made)
        with pytest.raises(CannotReplay, match="limit on ops or memory"):
            OpReplay(made, made.roots)


def test_custom_functions_whose_apply_is_written_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is since torch 2.14; older ones have it below their own in Python."""
    in_c = vars(torch._C._FunctionBase)["apply"]
    monkeypatch.setattr(torch.autograd.Function, "apply", in_c)
    with tape() as made:
        model, loss = CASES["own_function"]()
        root = recorded(loss, made)
        assert made.trouble is None
        player = OpReplay(made, made.roots)
        moved(model)
        assert player.play() == pytest.approx([float(loss().detach())], rel=1e-6)
        assert player.play() != pytest.approx([float(root.detach())], rel=1e-6)
    assert vars(torch.autograd.Function)["apply"] is in_c


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
        assert OpReplay(made, made.roots).play() == [float(loss.detach())]
        made.end()
