"""From a bad loss or gradient back to the op that made it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.replay_runs import line_of, traced, traced_over
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

INF = math.inf


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def rows_with(value: float, *rows: int, size: int = 6) -> Tensor:
    x = torch.rand(size, 4) + 0.5
    x[list(rows)] = value
    return x


class TestForwardOrigins:
    def test_log_of_zero_with_line_and_rows(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            return torch.log(x).mean() + model(x).mean()

        origin = traced(Mlp(), rows_with(0.0, 2, 5), compute).origin
        assert (origin.op, origin.phase, origin.rows) == ("log", "forward", (2, 5))
        assert "torch.log(x)" in line_of(origin)
        assert origin.inputs[0].role == "batch"
        assert origin.inputs[0].zero == 8

    def test_module_path_and_line_inside_the_model(self) -> None:
        class Head(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x / (x - x)

        model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Tanh(), Head()))
        found = traced(model, torch.rand(5, 4), lambda model, x: model(x).sum())
        assert (found.origin.op, found.origin.module) == ("div", "1.1")
        assert line_of(found.origin) == "return x / (x - x)"
        assert found.origin.rows == ()  # all of them

    def test_reached_names_the_parameters_whose_gradients_are_bad(self) -> None:
        def compute(model: Mlp, x: Tensor) -> Tensor:
            return torch.log(model(x) * 0).mean()

        found = traced(Mlp(), torch.rand(5, 4), compute)
        assert set(found.origin.reached) == {
            "first.weight",
            "first.bias",
            "second.weight",
            "second.bias",
        }

    def test_infinity_is_followed_beyond_the_op_that_makes_nan_of_it(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            huge = torch.exp(model(x) * 1e4)
            weights = huge / huge.sum(dim=1, keepdim=True)
            return weights.mean()

        origin = traced(Mlp(), torch.rand(5, 4), compute).origin
        assert origin.op == "exp"
        assert line_of(origin) == "huge = torch.exp(model(x) * 1e4)"

    def test_what_never_reaches_the_loss_is_not_blamed(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            _unused = torch.log(x - x)
            safe = torch.where(x > 0, torch.log(x.detach()), 0.0)
            return safe.mean() + model(x).mean() + torch.sqrt(-model(x).mean().square() - 1)

        found = traced(Mlp(), rows_with(0.0, 1), compute)
        assert [origin.op for origin in found.origins] == ["sqrt"]

    def test_linear_in_half_precision_overflows(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                return model(x).float().mean()

        model = Mlp()
        with torch.no_grad():
            model.second.weight.fill_(6e4)
        origin = traced(model, torch.rand(6, 4), compute).origin
        assert (origin.op, origin.module, origin.autocast) == ("linear", "second", "float16")

    def test_cast_that_overflows(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                return model(x * 1e6).float().mean()

        origin = traced(Mlp(), torch.rand(6, 4) + 0.5, compute).origin
        assert (origin.op, origin.module, origin.autocast) == ("to", "first", "float16")

    def test_bfloat16_autocast(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x)
            return out.float().mean() + (out.float() - out.float()).log().mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, origin.autocast) == ("log", None)

    def test_convolutions_and_batch_norm(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
        )
        x = torch.rand(5, 1, 8, 8)
        model(x)
        with torch.no_grad():
            model[0].weight.fill_(3e38)
        origin = traced(model, x, lambda model, x: model(x).mean()).origin
        assert (origin.op, origin.module) == ("conv2d", "0")
        assert {operand.role for operand in origin.inputs} == {"batch", "weight"}

    def test_in_place_ops_are_told_by_what_they_were_given(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            y = model(x).abs()
            y.sub_(y.detach())
            y.log_()
            y.mul_(2)
            return y.mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, line_of(origin)) == ("log", "y.log_()")
        assert origin.inputs[0].zero == 18
        assert origin.inputs[0].inf == 0

    def test_pieces_of_a_tensor_keep_their_own_writers(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            out = torch.zeros(3, 6, 3)
            out[0] = model(x)
            out[1] = torch.log(model(x) * 0)
            out[2] = model(x)
            return out.mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, line_of(origin)) == ("log", "out[1] = torch.log(model(x) * 0)")

    def test_recurrent_network(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.LSTM(4, 5, batch_first=True)

            def forward(self, x: Tensor) -> Tensor:
                out, _ = self.rnn(x)
                return out[:, -1]

        x = torch.rand(3, 7, 4)

        def compute(model: nn.Module, x: Tensor) -> Tensor:
            return torch.rsqrt(F.relu(model(x) * 0)).mean()

        origin = traced(Net(), x, compute).origin
        assert origin.op == "rsqrt"
        with_bad = x.clone()
        with_bad[1, 3, 2] = math.nan
        origin = traced(Net(), with_bad, lambda model, x: model(x).mean()).origin
        assert (origin.inputs[0].role, origin.rows, origin.module) == ("batch", (1,), "rnn")
        assert origin.op == "lstm"

    def test_loop_gives_one_origin_at_its_first_turn(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            loss = torch.zeros(())
            for _ in range(4):
                loss = loss + torch.log(model(x) * 0).mean()
            return loss

        assert len(traced(Mlp(), torch.rand(6, 4), compute).origins) == 1

    def test_compiled_model_is_run_as_written(self) -> None:
        class Model(Mlp):
            def forward(self, x: Tensor) -> Tensor:
                return torch.log(self.first(x) * 0)

        model = Model()
        compiled = torch.compile(model, backend="eager")
        compiled(torch.rand(6, 4))
        origin = traced(compiled, torch.rand(6, 4), lambda model, x: model(x).mean()).origin
        assert (origin.op, line_of(origin)) == ("log", "return torch.log(self.first(x) * 0)")

    def test_library_line_and_the_users_call(self, tmp_path: Any, monkeypatch: Any) -> None:
        import sysconfig

        from headway.torch_adapters import frames

        library = tmp_path / "lib" / "some_library.py"
        library.parent.mkdir()
        library.write_text("def call(x):\n    return x.log()\n")
        frames._installed.cache_clear()
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library.parent))
        monkeypatch.syspath_prepend(library.parent)
        import some_library

        def compute(model: nn.Module, x: Tensor) -> Tensor:
            return some_library.call(model(x) * 0).mean()

        try:
            origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        finally:
            frames._installed.cache_clear()
        assert line_of(origin) == "return x.log()"
        assert origin.called_from is not None
        assert origin.called_from.source == "return some_library.call(model(x) * 0).mean()"


class TestInfinitiesBesideOthers:
    """An op that is given infinities may make more of them, of finite numbers."""

    def test_only_the_one_whose_sample_became_nan_is_blamed(self) -> None:
        def compute(model: nn.Module, u: Tensor) -> Tensor:
            first = -torch.log(u)  # inf in sample 1, which softmax bears as -inf
            gumbel = -torch.log(first)  # inf in sample 3, which it does not
            return (model(u) + gumbel).softmax(-1).square().mean()

        u = torch.rand(6, 4)
        u[1, 3], u[3, 0] = 0.0, 1.0
        origin = traced(nn.Linear(4, 4), u, compute).origin
        assert line_of(origin).startswith("gumbel =")
        assert (origin.kind, origin.rows) == ("log-of-zero", (3,))

    def test_an_overflow_next_to_a_mask_is_no_mask(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            mask = torch.tensor([0.0, 0.0, 0.0, -INF])
            scores = model(x) + mask
            weights = scores.exp()
            return (weights / weights.sum(-1, keepdim=True)).square().mean()

        x = torch.rand(6, 4)
        model = nn.Linear(4, 4)
        x[2] = 1e4 * model.weight[0].detach().sign()
        origin = traced(model, x, compute).origin
        assert (origin.op, origin.kind, origin.rows) == ("exp", "exp-overflow", (2,))

    def test_samples_that_were_left_out_are_not_named(self) -> None:
        def compute(model: nn.Module, batch: Any) -> Tensor:
            x, keep = batch
            with torch.no_grad():
                logs = x.log()
            return (torch.where(keep, logs, 0.0) * model(x)).mean()

        x, keep = torch.rand(6, 4), torch.ones(6, 1, dtype=torch.bool)
        x[0], x[4], keep[4] = 0.0, 0.0, False
        assert traced(nn.Linear(4, 4), (x, keep), compute).origin.rows == (0,)


class TestCallers:
    def test_of_a_function_with_several_the_one_is_named(self) -> None:
        def unit(h: Tensor) -> Tensor:
            return h / h.norm(dim=1, keepdim=True)

        def compute(model: nn.Module, batch: Any) -> Tensor:
            a = unit(model(batch[0]))
            b = unit(model(batch[1]))
            return (a * b).mean()

        origin = traced(nn.Linear(4, 4, bias=False), (torch.rand(6, 4), torch.zeros(6, 4)), compute)
        assert origin.origin.called_from is not None
        assert origin.origin.called_from.source.startswith("b = unit")

    def test_one_alone_is_not_worth_a_word(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            outputs = [model(x) * 0 for _ in range(2)]
            return sum(out.log().mean() for out in outputs)  # type: ignore[return-value]

        assert traced(Mlp(), torch.rand(6, 4), compute).origin.called_from is None


class TestArrays:
    """A loader of NumPy arrays: they are the batch, whatever is made of them in the loop."""

    @pytest.mark.parametrize("made", [torch.from_numpy, torch.tensor, torch.as_tensor])
    def test_bad_ones_are_the_batchs(self, made: Any) -> None:
        rows = np.ones((6, 4), dtype=np.float32)
        rows[2, 1] = np.nan

        def compute(model: nn.Module, batch: Any) -> Tensor:
            return model(made(batch["x"])).square().mean()  # type: ignore[no-any-return]

        origin = traced(nn.Linear(4, 4), {"x": rows}, compute).origin
        assert (origin.kind, origin.rows) == ("poisoned-batch", (2,))
        assert "batch['x']" in origin.cause


class TestTables:
    def test_the_samples_that_read_a_bad_row(self) -> None:
        table = nn.Embedding(5, 4)
        with torch.no_grad():
            table.weight[3] = math.nan
        ids = torch.tensor([[0, 1], [3, 1], [2, 2]])
        origin = traced(table, ids, lambda model, ids: model(ids).square().mean()).origin
        assert (origin.kind, origin.rows) == ("poisoned-weight", (1,))


class Attention(nn.Module):
    """With decoys: −inf in masks, and log of a 0/1 mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 5)
        causal = torch.full((6, 6), -INF).triu(1)
        self.register_buffer("causal", causal)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / math.sqrt(8)
        scores = scores + self.causal
        scores = scores + keep.float().log()[:, None, :]
        scores = scores.masked_fill(~keep[:, None, :], -INF)
        return self.out(F.softmax(scores, dim=-1) @ v)


def sentences() -> tuple[Tensor, Tensor]:
    keep = torch.ones(4, 6, dtype=torch.bool)
    keep[:, 5] = False
    return torch.rand(4, 6, 8), keep


class TestDeliberateInfinities:
    def test_masks_are_not_blamed(self) -> None:
        def compute(model: nn.Module, batch: Any) -> Tensor:
            out = model(*batch)
            return torch.log(out.mean() - out.mean())

        origin = traced(Attention(), sentences(), compute).origin
        assert (origin.op, origin.module) == ("log", "")

    def test_fully_masked_row(self) -> None:
        x, keep = sentences()
        keep[2] = False
        origin = traced(Attention(), (x, keep), lambda model, batch: model(*batch).mean()).origin
        assert (origin.op, origin.rows) == ("softmax", (2,))
        assert line_of(origin) == "return self.out(F.softmax(scores, dim=-1) @ v)"

    def test_overflow_under_a_mask_is_found_behind_it(self) -> None:
        model = Attention()
        with torch.no_grad():
            model.qkv.weight.mul_(1e30)
        origin = traced(model, sentences(), lambda model, batch: model(*batch).mean()).origin
        assert origin.op in ("bmm", "matmul")
        assert "q @ k.transpose(1, 2)" in line_of(origin)

    def test_target_that_is_masked_blames_what_picked_it(self) -> None:
        def compute(model: nn.Module, batch: Any) -> Tensor:
            x, target = batch
            logits = model(x)
            allowed = torch.tensor([True, True, False])
            logits = logits.masked_fill(~allowed, -INF)
            return F.cross_entropy(logits, target)

        target = torch.tensor([0, 1, 1, 2, 0, 1])
        origin = traced(Mlp(), (torch.rand(6, 4), target), compute).origin
        assert (origin.op, origin.rows) == ("nll_loss", (3,))
        assert line_of(origin) == "return F.cross_entropy(logits, target)"

    def test_masked_class_taken_by_gather(self) -> None:
        def compute(model: nn.Module, batch: Any) -> Tensor:
            x, target = batch
            logits = torch.where(torch.tensor([True, True, False]), model(x), -INF)
            log_p = F.log_softmax(logits, dim=-1)
            taken = log_p.gather(1, target[:, None])
            return -taken.mean()

        target = torch.tensor([0, 1, 1, 2, 0, 1])
        origin = traced(Mlp(), (torch.rand(6, 4), target), compute).origin
        assert (origin.op, origin.rows) == ("gather", (3,))
        assert line_of(origin) == "taken = log_p.gather(1, target[:, None])"

    def test_zero_times_a_mask(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            mask = torch.zeros(3)
            mask[1] = -INF
            return (torch.relu(model(x) - 100) * mask).mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, line_of(origin)) == (
            "mul",
            "return (torch.relu(model(x) - 100) * mask).mean()",
        )

    def test_infinity_added_to_the_loss(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            loss = model(x).mean()
            return loss + INF

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, line_of(origin)) == ("add", "return loss + INF")

    def test_saturated_probabilities_are_no_mask(self) -> None:
        def compute(model: nn.Module, batch: Any) -> Tensor:
            x, y = batch
            p = torch.sigmoid(model(x)[:, 0] * 1e6)
            return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()

        model = Mlp()
        with torch.no_grad():
            model.second.bias.zero_()
        x = torch.randn(6, 4)
        found = traced(model, (x, torch.ones(6)), compute)
        assert found.origin.op == "log"

    def test_half_precision_mask_of_minus_a_billion(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            keep = torch.ones(6, 3)
            keep[2] = 0
            bias = (1.0 - keep).half() * -1e9
            return F.softmax(model(x) + bias, dim=-1).mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, origin.rows) == ("softmax", (2,))


class TestBackwardOrigins:
    def test_square_root_of_zero(self) -> None:
        class Norm(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(4))

            def forward(self, x: Tensor) -> Tensor:
                squares = (x * self.scale).square().sum(dim=1)
                return torch.sqrt(squares)

        origin = traced(Norm(), rows_with(0.0, 3), lambda model, x: model(x).mean()).origin
        assert (origin.phase, origin.op, origin.node) == ("backward", "sqrt", "SqrtBackward0")
        assert line_of(origin) == "return torch.sqrt(squares)"
        assert (origin.rows, origin.reached) == ((3,), ("scale",))

    @pytest.mark.parametrize("op", ["log", "sqrt", "reciprocal", "exp", "acos"])
    def test_hidden_by_where(self, op: str) -> None:
        edge = {"log": 0.0, "sqrt": 0.0, "reciprocal": 0.0, "exp": 200.0, "acos": 1.0}[op]

        def compute(model: nn.Module, x: Tensor) -> Tensor:
            inputs = x * model.first.weight.mean() / model.first.weight.mean().detach()
            risky = getattr(torch, op)(inputs)
            return torch.where(x == edge, 0.0, risky).mean()

        x = torch.rand(6, 4) * 0.5 + 0.1
        x[2, 1] = edge
        origin = traced(Mlp(), x, compute).origin
        assert (origin.phase, origin.op) == ("backward", op)
        assert line_of(origin) == "risky = getattr(torch, op)(inputs)"
        assert origin.rows == (2,)
        assert origin.node is not None
        assert origin.node.lower().startswith(op)

    def test_division_hidden_by_where(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            below = x * model.first.weight.mean()
            ratio = model(x).mean() / below
            return torch.where(x == 0, 0.0, ratio).mean()

        found = traced(Mlp(), rows_with(0.0, 2), compute)
        assert (found.origin.phase, found.origin.op) == ("backward", "div")
        assert len(found.origins) == 1

    def test_infinity_that_only_backward_sees_leads_to_its_forward_op(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            huge = torch.exp(x)
            product = huge * model.first.weight.mean()
            return torch.where(x > 50, 0.0, product).mean()

        origin = traced(Mlp(), rows_with(200.0, 2), compute).origin
        assert (origin.op, line_of(origin)) == ("exp", "huge = torch.exp(x)")
        assert origin.reached == ("first.weight",)

    def test_custom_function(self) -> None:
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad / (grad - grad)

        origin = traced(Mlp(), torch.rand(6, 4), lambda model, x: Bad.apply(model(x)).mean()).origin
        assert (origin.phase, origin.op, origin.node) == ("backward", "div", "BadBackward")
        assert line_of(origin) == "return grad / (grad - grad)"

    def test_custom_function_with_a_bad_forward(self) -> None:
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return torch.log(x - x)

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad

        origin = traced(Mlp(), torch.rand(6, 4), lambda model, x: Bad.apply(model(x)).mean()).origin
        assert (origin.phase, origin.op) == ("forward", "log")

    def test_tensor_hook(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            out = model(x)
            out.register_hook(lambda grad: grad * 1e38 * 1e38)
            return out.mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.phase, origin.op) == ("backward", "mul")
        assert line_of(origin) == "out.register_hook(lambda grad: grad * 1e38 * 1e38)"

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointed_module(self, reentrant: bool) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lin = nn.Linear(4, 4)

            def forward(self, x: Tensor) -> Tensor:
                y = self.lin(x).square()
                hidden = torch.sqrt(y * 0)
                return y + hidden

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList([nn.Linear(4, 4), Block()])

            def forward(self, x: Tensor) -> Tensor:
                x = self.blocks[0](x)
                return checkpoint(self.blocks[1], x, use_reentrant=reentrant)

        origin = traced(Model(), torch.rand(6, 4), lambda model, x: model(x).mean()).origin
        assert (origin.phase, origin.op, origin.module) == ("backward", "sqrt", "blocks.1")
        assert line_of(origin) == "hidden = torch.sqrt(y * 0)"

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_hidden_infinity_that_is_recomputed(self, reentrant: bool) -> None:
        def block(x: Tensor, scale: Tensor) -> Tensor:
            risky = torch.exp(x * scale)
            return torch.where(x > 50, 0.0, risky)

        def compute(model: nn.Module, x: Tensor) -> Tensor:
            scale = model.first.weight.mean() * 0 + 1
            return checkpoint(block, x, scale, use_reentrant=reentrant).mean()

        origin = traced(Mlp(), rows_with(200.0, 2), compute).origin
        assert (origin.op, line_of(origin)) == ("exp", "risky = torch.exp(x * scale)")
        assert origin.rows == (2,)

    def test_gradient_overflow_in_half_precision(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                out = model(x)
            return out.float().mean() * 1e9

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert origin.phase == "backward"
        assert origin.output is not None
        assert origin.output.dtype == "float16"

    def test_gradient_penalty_through_two_backwards(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (grad,) = torch.autograd.grad(model(x).sum() * 0, x, create_graph=True)
            return model(x).mean() + grad.norm() + grad.square().sum().sqrt()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.phase, origin.op) == ("backward", "sqrt")


class TestLeaves:
    def test_poisoned_batch_leads_through_its_copies(self) -> None:
        def compute(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            x = batch["x"].to(torch.float64).to(torch.float32)
            return model(x).mean()

        origin = traced(Mlp(), {"x": rows_with(math.nan, 1, 4)}, compute).origin
        assert (origin.kind, origin.rows) == ("poisoned-batch", (1, 4))
        assert origin.inputs[0].name == "batch['x']"
        assert origin.inputs[0].nan == 8

    def test_poisoned_weight(self) -> None:
        model = Mlp()
        with torch.no_grad():
            model.second.weight[1, 2] = math.nan
        origin = traced(model, torch.rand(6, 4), lambda model, x: model(x).mean()).origin
        assert (origin.kind, origin.module) == ("poisoned-weight", "second")
        assert (origin.inputs[0].name, origin.rows) == ("second.weight", ())

    def test_weight_and_bias_of_one_layer(self) -> None:
        model = Mlp()
        with torch.no_grad():
            model.second.weight[1, 2] = math.nan
            model.second.bias[0] = math.nan
        found = traced(model, torch.rand(6, 4), lambda model, x: model(x).mean())
        names = {origin.inputs[0].name for origin in found.origins}
        assert names == {"second.weight", "second.bias"}

    def test_infinite_weight(self) -> None:
        model = Mlp()
        with torch.no_grad():
            model.first.weight[1, 2] = INF

        def compute(model: nn.Module, x: Tensor) -> Tensor:
            return F.layer_norm(model.first(x), (8,)).mean()

        origin = traced(model, torch.rand(6, 4), compute).origin
        assert (origin.kind, origin.inputs[0].name) == ("poisoned-weight", "first.weight")

    def test_poisoned_buffer(self) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
        model[1].running_var[1] = math.nan
        origin = traced(model, torch.rand(6, 4), lambda model, x: model(x).mean()).origin
        assert (origin.kind, origin.inputs[0].name) == ("poisoned-buffer", "1.running_var")

    def test_running_statistics_do_not_matter_in_training(self) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        model[1].running_var[1] = math.nan
        x = rows_with(math.nan, 2)
        origin = traced(model, x, lambda model, x: model(x).mean()).origin
        assert origin.kind == "poisoned-batch"

    def test_carried_from_an_earlier_step(self) -> None:
        hidden = torch.full((6, 3), math.nan)
        origin = traced(Mlp(), torch.rand(6, 4), lambda m, x: (m(x) + hidden).mean()).origin
        assert (origin.kind, origin.op) == ("carried-state", "add")

    def test_uninitialised_memory(self) -> None:
        torch.use_deterministic_algorithms(True)  # fills new memory with NaN
        try:

            def compute(model: nn.Module, x: Tensor) -> Tensor:
                out = torch.empty(6, 3)
                out[:4] = model(x)[:4]
                return out.mean()

            origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        finally:
            torch.use_deterministic_algorithms(False)
        assert (origin.kind, origin.op) == ("uninitialised-memory", "empty")
        assert line_of(origin) == "out = torch.empty(6, 3)"

    def test_memory_that_torch_did_not_see_written(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            y = model(x)
            out = torch.zeros(6, 3)
            out.numpy()[:] = math.nan  # as a kernel of somebody else's would
            return (y + out).mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.inputs[0].role, origin.op) == ("computed", "zeros")

    def test_nan_written_in_the_code(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            return (model(x) * torch.tensor(math.nan)).mean()

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert origin.inputs[0].role == "constant"
        assert "torch.tensor(math.nan)" in line_of(origin)


class TestComponents:
    def test_bad_part_of_the_loss(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
            out = model(x)
            return {"fit": out.square().mean(), "prior": torch.log(out * 0).mean()}

        origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        assert (origin.op, origin.component) == ("log", "prior")

    @pytest.mark.parametrize("detached", [False, True])
    def test_part_whose_backward_is_bad(self, detached: bool) -> None:
        scene_parts: dict[str, Tensor] = {}

        def compute(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
            out = model(x)
            scene_parts.update(fit=out.square().mean(), prior=torch.sqrt(out * 0).mean())
            return scene_parts

        if not detached:
            origin = traced(Mlp(), torch.rand(6, 4), compute).origin
        else:
            from support.replay_runs import scene_of

            from headway.explain import locate
            from headway.explain.trace import Trace

            model = Mlp()
            x = torch.rand(6, 4)
            scene = scene_of(model, x)
            with Trace(scene) as trace:
                parts = compute(model, x)
                loss = parts["fit"] + parts["prior"]
                shown = {name: part.detach() for name, part in parts.items()}
                trace.backward_begins([loss], shown)
                loss.backward()
                trace.gradients_ready(list(model.parameters()))
            origin = locate.find_origins(trace, scene)[0]
        assert (origin.op, origin.component) == ("sqrt", "prior")

    def test_shared_part_belongs_to_none(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
            out = torch.sqrt(model(x) * 0)
            return {"fit": out.square().mean(), "prior": out.mean()}

        assert traced(Mlp(), torch.rand(6, 4), compute).origin.component is None


class TestRows:
    def test_second_batch_of_two(self) -> None:
        batches = [torch.rand(6, 4) + 0.5, rows_with(0.0, 4)]
        origin = traced_over(Mlp(), batches, lambda m, x: m(x).mean() + x.log().mean()).origin
        assert (origin.batch, origin.rows) == (1, (4,))

    def test_tokens_in_one_long_row(self) -> None:
        def compute(model: nn.Module, x: Tensor) -> Tensor:
            tokens = model(x.reshape(-1, 4))
            return torch.log(tokens.abs() * x.reshape(-1, 4)[:, :1]).mean()

        x = torch.rand(5, 7, 4) + 0.1
        x[3, 2] = 0
        assert traced(Mlp(), x, compute).origin.rows == (3,)

    def test_sequence_first(self) -> None:
        def compute(model: nn.Module, batch: Any) -> Tensor:
            x, _ = batch
            return (model(x).mean() + torch.log(x)).mean()

        x = torch.rand(7, 5, 4) + 0.1
        x[2, 3] = 0
        assert traced(Mlp(), (x, torch.zeros(5)), compute).origin.rows == (3,)

    def test_gradient_of_a_weight_names_the_sample_that_stands_out(self) -> None:
        model = nn.Linear(4, 1, bias=False)
        x = torch.rand(6, 4)
        x[5] = 2e38

        def compute(model: nn.Module, x: Tensor) -> Tensor:
            return (model(x * 1e-38) * 10).sum() + F.linear(x, model.weight * 0).sum() * 100

        origin = traced(model, x, compute).origin
        assert origin.phase == "backward"
        assert origin.rows == (5,)

    def test_one_sample_alone(self) -> None:
        assert traced(
            Mlp(), torch.zeros(1, 4), lambda m, x: x.log().mean() + m(x).mean()
        ).origin.rows == (0,)
