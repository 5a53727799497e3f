"""Stable ops on a GPU: every dtype, every singular point; and nothing waits for the device."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support import stable_op_cases as cases
from support.stable_op_cases import CASES, DTYPES, FULL, MASK, Case, value_and_gradients
from torch import Tensor

from headway import numerics
from headway.numerics.ops import _kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
DEEP = ("norm", "normalize", "std", "cosine_similarity")
"""Ops on rows that are right at every scale."""


def on_gpu(items: list[Tensor]) -> list[Tensor]:
    return [item.detach().cuda() for item in items]


def test_the_kernels_are_used() -> None:
    for dtype in DTYPES:
        assert _kernels.can_fuse(torch.ones(1, device="cuda", dtype=dtype)), dtype


@every_case
@every_dtype
@pytest.mark.parametrize("rows", [4, 3000], ids=["few, contiguous", "many, strided"])
def test_it_agrees_with_float64_on_the_cpu(case: Case, dtype: torch.dtype, rows: int) -> None:
    inputs = cases.regular(case, dtype, rows)
    exact, exact_gradients = value_and_gradients(case.plain, [item.double() for item in inputs])
    here = on_gpu(inputs)
    if rows > 4:
        here = [item.T.contiguous().T for item in here]
    ours, our_gradients = value_and_gradients(case.stable, here)
    assert ours.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(ours.double().cpu(), exact, rtol=4 * step, atol=4 * step)
    for mine, right in zip(our_gradients, exact_gradients, strict=True):
        assert mine.dtype == dtype
        largest = float(right.abs().max())
        torch.testing.assert_close(
            mine.double().cpu(), right, rtol=8 * step, atol=4 * step * max(largest, 1.0)
        )


@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_values_are_torch_s_own_bits_and_elementwise_gradients_too(dtype: torch.dtype) -> None:
    for case in CASES:
        inputs = on_gpu(cases.regular(case, dtype, 3000))
        ours, our_gradients = value_and_gradients(case.stable, inputs)
        theirs, their_gradients = value_and_gradients(case.plain, inputs)
        if case.name in ("sqrt", "log", "exp", "divide", "norm", "normalize", "logsumexp", "var"):
            assert torch.equal(ours, theirs), case.name
        if case.name in ("sqrt", "log", "exp", "divide"):
            for mine, plain in zip(our_gradients, their_gradients, strict=True):
                assert torch.equal(mine, plain), case.name


def row_ops(dim: int, mask: Tensor) -> list[Callable[[Tensor], Tensor]]:
    return [
        lambda x: numerics.norm(x, dim),
        lambda x: numerics.normalize(x, dim),
        lambda x: numerics.std(x, dim, True),
        lambda x: numerics.logsumexp(x, dim),
        lambda x: numerics.masked_mean(x, mask.to(x.device), dim),
        lambda x: numerics.masked_softmax(x, mask.to(x.device), dim),
        lambda x: numerics.masked_log_softmax(x, mask.to(x.device), dim).clamp_min(-100),
    ]


@every_dtype
def test_wide_rows_and_other_dimensions(dtype: torch.dtype) -> None:
    # In float64 the other side is no more exact than this one.
    step = torch.finfo(dtype).eps * (32 if dtype == torch.float64 else 1)
    for shape, dim in (((3, 70001), -1), ((513, 3, 5), 0), ((4, 1025, 3), 1)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
        mask = x > 0
        for op in row_ops(dim, mask):
            exact, [right] = value_and_gradients(op, [x.double()])
            ours, [mine] = value_and_gradients(op, [x.cuda()])
            for got, want in ((ours, exact), (mine, right)):
                most = float(want.abs().max())
                torch.testing.assert_close(
                    got.double().cpu(), want, rtol=16 * step, atol=8 * step * max(most, 1.0)
                )


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-36, 1e37])
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scales_whose_squares_do_not_fit(name: str, scale: float, dtype: torch.dtype) -> None:
    case = cases.BY_NAME[name]
    inputs = [(item.detach() / 4 * scale).to(dtype) for item in cases.regular(case)]
    exact, exact_gradients = value_and_gradients(case.plain, [item.double() for item in inputs])
    ours, our_gradients = value_and_gradients(case.stable, on_gpu(inputs))
    step = torch.finfo(dtype).eps
    most = float(exact.abs().max())
    torch.testing.assert_close(ours.double().cpu(), exact, rtol=4 * step, atol=4 * step * most)
    for mine, right in zip(our_gradients, exact_gradients, strict=True):
        most = float(right.abs().max())
        torch.testing.assert_close(mine.double().cpu(), right, rtol=0, atol=8 * step * most)


@every_case
@every_dtype
def test_singular_rows_are_as_on_the_cpu(case: Case, dtype: torch.dtype) -> None:
    """Zeros, equal entries, what overflows, what is denormal; beside ordinary rows."""
    limits = torch.finfo(dtype)
    inputs = [item.detach() for item in cases.regular(case, dtype, 12)]
    for item in inputs:
        item[1] = 0.0
        item[2] = -1.0
        item[3] = limits.max
        item[4] = limits.smallest_normal / 4
        item[5] = item[5, 0]
        if case.name in ("logsumexp", "masked_softmax", "masked_log_softmax"):
            item[6] = -math.inf
    inputs[0][7] = limits.max
    if case.name == "var":  # infinite there, as torch's
        inputs = [item[:3] for item in inputs]
    theirs, their_gradients = value_and_gradients(case.stable, inputs)
    ours, our_gradients = value_and_gradients(case.stable, on_gpu(inputs))
    assert ours.isfinite().all()
    step = limits.eps
    torch.testing.assert_close(ours.cpu(), theirs, rtol=8 * step, atol=8 * step)
    for mine, plain in zip(our_gradients, their_gradients, strict=True):
        assert mine.isfinite().all()
        most = plain.double().abs().amax(-1, keepdim=True).clamp_min(1.0)
        apart = (mine.double().cpu() - plain.double()).abs()
        assert (apart <= 16 * step * most).all(), (apart / most).amax(-1)


@every_case
@every_dtype
def test_nan_is_not_hidden(case: Case, dtype: torch.dtype) -> None:
    inputs = on_gpu(cases.regular(case, dtype))
    inputs[0][0, 0] = math.nan
    assert case.stable(*inputs).isnan().any()
    inputs[0][1] = 0.0
    assert case.stable(*inputs).isnan().any()


@every_dtype
def test_empty_and_fully_masked_rows(dtype: torch.dtype) -> None:
    lowest = torch.finfo(dtype).min
    nothing = torch.ones(3, 0, dtype=dtype, device="cuda")
    for size in (0, 1):
        assert numerics.std(torch.ones(3, size, dtype=dtype, device="cuda")).tolist() == [0, 0, 0]
    assert numerics.norm(nothing).tolist() == [0, 0, 0]
    assert numerics.logsumexp(nothing).tolist() == [lowest] * 3
    assert numerics.exp(nothing).shape == numerics.masked_softmax(nothing).shape == (3, 0)
    none = torch.zeros(2, 6, dtype=torch.bool, device="cuda")
    poison = torch.full((2, 6), math.nan, dtype=dtype, device="cuda")
    for op, expected in (
        (lambda x: numerics.masked_mean(x, none, -1), 0.0),
        (lambda x: numerics.masked_mean(x, none), 0.0),
        (lambda x: numerics.masked_softmax(x, none), 0.0),
        (lambda x: numerics.masked_log_softmax(x, none), lowest),
    ):
        value, [gradient] = value_and_gradients(op, [poison])
        assert (value == expected).all()
        assert not gradient.any()


@every_case
def test_gradcheck_and_gradgradcheck(case: Case) -> None:
    inputs = [item.requires_grad_() for item in on_gpu(cases.regular(case, rows=2))]
    assert torch.autograd.gradcheck(case.stable, inputs)
    assert torch.autograd.gradgradcheck(case.stable, inputs)


@every_case
def test_gradients_in_batches_vmap_and_autocast(case: Case) -> None:
    inputs = [item.requires_grad_() for item in on_gpu(cases.regular(case, torch.float32))]
    value = case.stable(*inputs)
    batch = torch.randn(3, *value.shape, device="cuda")
    together = torch.autograd.grad(value, inputs, batch, is_grads_batched=True, retain_graph=True)
    [alone, *_] = torch.autograd.grad(value, inputs, batch[1])
    torch.testing.assert_close(together[0][1], alone)
    rows = [item.detach() for item in inputs]
    torch.testing.assert_close(torch.func.vmap(case.stable)(*rows), value.detach())
    with torch.autocast("cuda", torch.bfloat16):
        cast = case.stable(*[item.half() for item in rows])
    assert cast.dtype == torch.float16


def calls() -> dict[str, Callable[[], Tensor]]:
    """Every op, on tensors of its own that are already on the device."""
    x = torch.randn(64, 6, device="cuda", requires_grad=True)
    y = torch.rand(64, 6, device="cuda").add(0.1).requires_grad_()
    mask = MASK.cuda().expand(64, 6)
    return {
        "sqrt": lambda: numerics.sqrt(y),
        "log": lambda: numerics.log(y),
        "exp": lambda: numerics.exp(x),
        "divide": lambda: numerics.divide(x, y),
        "divide by a number": lambda: numerics.divide(x, 2.0),
        "divide a number": lambda: numerics.divide(1, y),
        "norm": lambda: numerics.norm(x),
        "normalize": lambda: numerics.normalize(x),
        "std": lambda: numerics.std(x),
        "var": lambda: numerics.var(x),
        "cosine_similarity": lambda: numerics.cosine_similarity(x, y),
        "logsumexp": lambda: numerics.logsumexp(x),
        "masked_mean": lambda: numerics.masked_mean(x, mask, -1),
        "masked_softmax": lambda: numerics.masked_softmax(x, mask),
        "masked_softmax without a mask": lambda: numerics.masked_softmax(x),
        "masked_log_softmax": lambda: numerics.masked_log_softmax(x, mask),
    }


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_nothing_waits_for_the_device() -> None:
    for name, call in calls().items():
        call().sum().backward()
        try:
            torch.cuda.set_sync_debug_mode("error")
            call().sum().backward()
        except RuntimeError as error:
            raise AssertionError(name) from error
        finally:
            torch.cuda.set_sync_debug_mode("default")


@every_case
def test_they_can_be_captured_in_a_graph(case: Case) -> None:
    if case.name.startswith("masked"):
        pytest.skip("its mask is copied to the device")
    inputs = [item.requires_grad_() for item in on_gpu(cases.regular(case, torch.float32))]
    plain = torch.autograd.grad(case.stable(*inputs).sum(), inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(case.stable(*inputs).sum(), inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        caught = torch.autograd.grad(case.stable(*inputs).sum(), inputs)
    graph.replay()
    for one, other in zip(caught, plain, strict=True):
        assert torch.equal(one, other)
