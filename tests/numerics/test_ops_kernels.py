"""The kernels of the stable ops: when they run, and that they compute what plain torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import jiterator_on_cpu
from support import stable_op_cases as cases
from support.stable_op_cases import BY_NAME, CASES, Case, value_and_gradients
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway import numerics
from headway.numerics.ops import _kernels

with_kernels = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "var"], ids=lambda case: case.name
)


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[_kernels.Kernel]:
    """The kernels that were launched, in order."""
    jiterator_on_cpu.install(monkeypatch)
    seen: list[_kernels.Kernel] = []
    launch = _kernels.launch

    def watched(kernel: _kernels.Kernel, *args: Any) -> Any:
        seen.append(kernel)
        return launch(kernel, *args)

    monkeypatch.setattr(_kernels, "launch", watched)
    return seen


def plainly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_kernels, "_on_gpu", lambda x: False)
    for name in ("elementwise", "row_norms", "mean_and_std", "softmax_ops"):  # fmt: skip
        patch.setattr(f"headway.numerics.ops.{name}.can_read_condition", lambda x: False)


@with_kernels
def test_they_agree_with_the_plain_form(
    case: Case, launched: list[_kernels.Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what is strided, broadcast or singular."""
    for dtype in cases.FULL:
        rows = [item.detach() for item in cases.regular(case, dtype, rows=12)]
        for item in rows:
            item[1] = 0.0
            item[2] *= 1e-30
            item[3] *= 1e30
            item[4] = item[4, 0]
            item[5, 3] = -torch.inf if case.name == "logsumexp" else 0.0
        strided = [item.T.contiguous().T for item in rows]
        for inputs in (rows, strided):
            launched.clear()
            ours, our_gradients = value_and_gradients(case.stable, inputs)
            assert launched
            with monkeypatch.context() as patch:
                plainly(patch)
                theirs, their_gradients = value_and_gradients(case.stable, inputs)
            step = torch.finfo(dtype).eps
            most = float(theirs.abs().amax()) if case.name == "cosine_similarity" else 0.0
            torch.testing.assert_close(ours, theirs, rtol=4 * step, atol=4 * step * most)
            for mine, plain in zip(our_gradients, their_gradients, strict=True):
                torch.testing.assert_close(
                    mine, plain, rtol=16 * step, atol=4 * step * float(plain.abs().amax())
                )


@with_kernels
def test_a_second_derivative_goes_the_plain_way(
    case: Case, launched: list[_kernels.Kernel]
) -> None:
    inputs = cases.regular(case, rows=2)
    value = case.stable(*inputs)
    launched.clear()
    torch.autograd.grad(value.sum(), inputs, create_graph=True)
    assert not launched


@with_kernels
def test_gradients_in_batches(case: Case) -> None:
    inputs = cases.regular(case)
    value = case.stable(*inputs)
    batch = torch.randn(3, *value.shape, dtype=value.dtype)
    together = torch.autograd.grad(value, inputs, batch, is_grads_batched=True, retain_graph=True)
    for n, one in enumerate(batch):
        alone = torch.autograd.grad(value, inputs, one, retain_graph=True)
        for many, single in zip(together, alone, strict=True):
            torch.testing.assert_close(many[n], single)


def test_broadcast_operands_get_gradients_of_their_own_shape() -> None:
    a = torch.randn(4, 1, 3, requires_grad=True)
    b = (torch.rand(5, 1) + 1).requires_grad_()
    ours = torch.autograd.grad(numerics.divide(a, b).square().sum(), [a, b])
    theirs = torch.autograd.grad((a / b).square().sum(), [a, b])
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain)
    assert numerics.divide(a.half(), b.double()).dtype == torch.float64


class Watching(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Marked(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@with_kernels
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_what_has_to_see_every_op_is_left_out(case: Case, launched: list[_kernels.Kernel]) -> None:
    inputs = [item.detach() for item in cases.regular(case, torch.float32)]
    with Watching():
        case.stable(*inputs)
    torch.func.vmap(case.stable)(*inputs)
    torch.func.grad(lambda *rows: case.stable(*rows).sum())(*inputs)
    torch.jit.trace(case.stable, tuple(inputs), check_trace=False)
    assert not launched


def test_which_tensors_they_are_for() -> None:
    x = torch.ones(2)
    assert _kernels.can_fuse(x)
    assert _kernels.can_fuse(torch.nn.Parameter(x))
    assert _kernels.can_fuse(x.half(), x)
    with torch.inference_mode():
        assert _kernels.can_fuse(torch.ones(2))
    assert _kernels.can_fuse(x, x > 0)
    for other in (
        torch.ones(2, device="meta"),
        x.to_sparse(),
        torch.Tensor._make_subclass(Marked, x),
    ):
        assert not _kernels.can_fuse(x, other)
    assert not _kernels.can_fuse(x[:0])
    assert not _kernels.can_fuse(x.int())


def test_kernels_that_cannot_be_compiled_are_not_used(
    monkeypatch: pytest.MonkeyPatch, launched: list[_kernels.Kernel]
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    for launch in (broken, lambda *_: torch.zeros(2)):
        monkeypatch.setattr(_kernels, "_WORKS", {})
        monkeypatch.setattr(_kernels, "launch", launch)
        assert numerics.exp(torch.tensor([0.0, 1e4])).tolist()[0] == 1
        assert list(_kernels._WORKS.values()) == [frozenset()]


@pytest.mark.parametrize("name", ["_transformed", "_watching_modes", "_tracing", "_keys"])
def test_without_torch_s_private_names_the_plain_form_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, launched: list[_kernels.Kernel]
) -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    root = numerics.sqrt(x)
    launched.clear()
    monkeypatch.setattr(_kernels, name, None)
    root.sum().backward()
    assert numerics.sqrt(x).tolist() == [0, 2]
    assert not launched


def test_without_torch_s_way_to_launch_the_plain_form_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(_kernels, "_WORKS", {})
    monkeypatch.setattr(_kernels, "_on_gpu", lambda x: True)
    monkeypatch.delattr(torch._C, "_cuda_jiterator_compile_and_launch_kernel", raising=False)
    assert numerics.sqrt(torch.tensor([0.0, 4.0])).tolist() == [0, 2]
    assert list(_kernels._WORKS.values()) == [frozenset()]


WIDE = {"below", "unit_backward"}
"""Kernels over all elements that write float32 for half types."""


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_stay_half(
    case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.name == "cosine_similarity":
        return  # computed in float32 from the start
    inputs = cases.regular(case, dtype)
    launch = _kernels.launch

    def measured(kernel: _kernels.Kernel, *args: Any) -> Any:
        found = launch(kernel, *args)
        for item in found if kernel.outputs > 1 else [found]:
            wide = item.numel() == inputs[0].numel() and item.dtype != dtype
            assert wide == (kernel.name in WIDE), kernel.name
        return found

    monkeypatch.setattr(_kernels, "launch", measured)
    value_and_gradients(case.stable, inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_spreads_around_a_large_mean_in_half_types(dtype: torch.dtype) -> None:
    x = (torch.randn(8, 300, generator=torch.Generator().manual_seed(5)) * 3 + 200).to(dtype)
    for name in ("std", "var"):
        ours, [mine] = value_and_gradients(BY_NAME[name].stable, [x])
        exact, [right] = value_and_gradients(BY_NAME[name].plain, [x.double()])
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(ours.double(), exact, rtol=step, atol=0)
        most = float(right.abs().amax())
        torch.testing.assert_close(mine.double(), right, rtol=2 * step, atol=most * step)


def test_torch_s_own_compiler_can_read_them(launched: list[_kernels.Kernel]) -> None:
    """Its parser finds the name, and the numbers in their order."""
    from torch.cuda.jiterator import _CodeParser

    kernels = [item for item in vars(_kernels).values() if isinstance(item, _kernels.Kernel)]
    assert len(kernels) > 20
    for kernel in kernels:
        parsed = _CodeParser(kernel.code)
        assert parsed.function_name == kernel.name
        assert parsed.return_type == ("void" if kernel.outputs > 1 else "T")
        names = [part.split()[-1] for part in parsed.function_params.strip("()").split(",")]
        last = len(names) - (kernel.outputs if kernel.outputs > 1 else 0)
        assert tuple(names[last - len(kernel.numbers) : last]) == kernel.numbers


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30, 3e38])
def test_rows_keep_the_bits_of_the_plain_norm_where_it_is_right(scale: float) -> None:
    from headway.numerics.ops import row_norms

    x = torch.randn(64, 33).clamp(-1, 1) * scale
    ours = row_norms.fused_row_norm(x, 1, torch.inf)
    exact = torch.linalg.vector_norm(x.double(), dim=1, keepdim=True)
    if scale == 1:
        assert torch.equal(ours, torch.linalg.vector_norm(x, dim=1, keepdim=True))
    fits = exact <= torch.finfo(torch.float32).max
    torch.testing.assert_close(ours[fits].double(), exact[fits], rtol=4e-7, atol=1e-45)
    assert ours[~fits].isinf().all()


def test_one_pass_each_way_over_an_elementwise_op(launched: list[_kernels.Kernel]) -> None:
    for name in ("sqrt", "log", "exp", "divide"):
        launched.clear()
        value_and_gradients(BY_NAME[name].stable, cases.regular(BY_NAME[name], torch.float32))
        assert len(launched) == 2


def test_no_kernel_is_left_over(launched: list[_kernels.Kernel]) -> None:
    """And so the tests on a GPU compile them all, in every dtype they are for."""
    for dtype in cases.DTYPES:
        for case in CASES:
            value_and_gradients(case.stable, cases.regular(case, dtype))
    kernels = {item for item in vars(_kernels).values() if isinstance(item, _kernels.Kernel)}
    assert kernels == set(launched)
