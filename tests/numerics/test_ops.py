"""Stable ops: torch's own away from the singular points, finite at them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import jiterator_on_cpu
from support import stable_op_cases as cases
from support.grids import all_but
from support.stable_op_cases import BY_NAME, CASES, DTYPES, FULL, MASK, Case, value_and_gradients
from torch import Tensor

from headway import numerics
from headway.numerics.ops import _shared, row_norms

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_way = pytest.mark.parametrize("way", ["looking", "blind", "fused"])


def go(way: str, request: pytest.FixtureRequest) -> None:
    if way != "looking":
        request.getfixturevalue(way)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator: the safe form always runs."""
    close_eyes(monkeypatch)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the kernels run, here by a compiler for the CPU."""
    jiterator_on_cpu.install(monkeypatch)


def close_eyes(patch: pytest.MonkeyPatch) -> None:
    for module in ("elementwise", "row_norms", "mean_and_std", "softmax_ops"):  # fmt: skip
        name = f"headway.numerics.ops.{module}.can_read_condition"
        patch.setattr(name, lambda x: False, raising=False)


def finite(value: Tensor, gradients: tuple[Tensor, ...]) -> bool:
    return bool(value.isfinite().all()) and all(bool(g.isfinite().all()) for g in gradients)


@every_case
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_away_from_singular_points_it_is_the_plain_op_bit_for_bit(
    case: Case, dtype: torch.dtype
) -> None:
    inputs = cases.regular(case, dtype)
    ours, our_gradients = value_and_gradients(case.stable, inputs)
    theirs, their_gradients = value_and_gradients(case.plain, inputs)
    assert torch.equal(ours, theirs)
    loose = case.name in ("cosine_similarity", "masked_log_softmax")  # the same sums, regrouped
    tolerance = 4 * torch.finfo(dtype).eps if loose else 0
    for mine, plain in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, plain, rtol=tolerance, atol=tolerance)


@every_case
@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_the_safe_form_gives_the_same_value_bit_for_bit(case: Case, dtype: torch.dtype) -> None:
    inputs = cases.regular(case, dtype)
    ours, our_gradients = value_and_gradients(case.stable, inputs)
    theirs, their_gradients = value_and_gradients(case.plain, inputs)
    assert torch.equal(ours, theirs)
    elementwise = case.name in ("sqrt", "log", "exp", "divide", "masked_mean", "masked_softmax")
    tolerance = 0 if elementwise else 8 * torch.finfo(dtype).eps
    for mine, plain in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, plain, rtol=tolerance, atol=tolerance)


@every_case
@pytest.mark.parametrize("dtype", all_but(DTYPES, torch.float32, torch.bfloat16), ids=str)
@every_way
def test_each_dtype_agrees_with_float64_to_its_resolution(
    case: Case, dtype: torch.dtype, way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    inputs = cases.regular(case, dtype)
    ours, our_gradients = value_and_gradients(case.stable, inputs)
    exact, exact_gradients = value_and_gradients(case.plain, [item.double() for item in inputs])
    assert ours.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(ours.double(), exact, rtol=2 * step, atol=2 * step)
    for mine, right in zip(our_gradients, exact_gradients, strict=True):
        assert mine.dtype == dtype
        largest = float(right.abs().max())
        torch.testing.assert_close(
            mine.double(), right, rtol=8 * step, atol=2 * step * max(largest, 1.0)
        )


@every_case
@every_way
def test_gradcheck_and_gradgradcheck(case: Case, way: str, request: pytest.FixtureRequest) -> None:
    go(way, request)
    inputs = cases.regular(case, rows=2)
    assert torch.autograd.gradcheck(case.stable, inputs)
    assert torch.autograd.gradgradcheck(case.stable, inputs)


@every_dtype
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_of_every_kind_are_finite_in_value_and_gradient(
    dtype: torch.dtype, data: st.DataObject
) -> None:
    """Zero rows, identical rows, opposite rows, one element, scales from denormal to huge."""
    limits = torch.finfo(dtype)
    kinds = st.sampled_from(["zero", "identical", "random", "opposite", "sparse"])
    exponents = {torch.float16: (-8, 4), torch.float64: (-320, 308)}.get(dtype, (-45, 38))

    def row(number: int) -> Tensor:
        kind = data.draw(kinds)
        scale = 10.0 ** data.draw(st.integers(*exponents))
        maker = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
        x = torch.randn(6, generator=maker, dtype=torch.float64).clamp(-3, 3)
        x = {
            "zero": torch.zeros(6, dtype=torch.float64),
            "identical": x[:1].expand(6),
            "random": x,
            "opposite": torch.cat([x[:3], -x[:3]]),
            "sparse": x * (torch.arange(6) == number % 6),
        }[kind]
        return (x * scale).clamp(limits.min, limits.max).to(dtype)

    a = torch.stack([row(n) for n in range(4)])
    b = torch.stack([row(n) for n in range(4)])
    for way in (lambda patch: None, close_eyes, jiterator_on_cpu.install):
        with pytest.MonkeyPatch.context() as patch:
            way(patch)
            for case in CASES:
                if case.name == "var":  # the variance of 1e30 is 1e60, and says so
                    continue
                value, gradients = value_and_gradients(case.stable, [a, b][: case.inputs])
                assert finite(value, gradients), (case.name, way, a, b, value, gradients)


@every_way
@pytest.mark.parametrize("scale", all_but([1e30, 1e-30, 1e-36, 1e37], 1e-36, 1e37))
@pytest.mark.parametrize("kind", ["identical", "random"])
@pytest.mark.parametrize("name", ["norm", "normalize", "std", "cosine_similarity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scales_whose_squares_do_not_fit_are_still_right(
    name: str, kind: str, scale: float, dtype: torch.dtype, way: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    go(way, request)
    case = BY_NAME[name]
    inputs = [item.detach() / 4 for item in cases.regular(case)]
    if kind == "identical":
        inputs = [item[:, :1].expand(4, 6) for item in inputs]
    inputs = [(item * scale).to(dtype) for item in inputs]
    ours, our_gradients = value_and_gradients(case.stable, inputs)
    exact, exact_gradients = value_and_gradients(case.plain, [item.double() for item in inputs])
    step = torch.finfo(dtype).eps
    largest = float(exact.abs().max())
    torch.testing.assert_close(ours.double(), exact, rtol=4 * step, atol=4 * step * largest)
    assert finite(ours, our_gradients)
    if kind == "random":
        for mine, right in zip(our_gradients, exact_gradients, strict=True):
            largest = float(right.abs().max())
            torch.testing.assert_close(mine.double(), right, rtol=0, atol=8 * step * largest)


@every_way
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_a_spread_in_the_last_digit_is_seen_at_every_scale(
    dtype: torch.dtype, way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    x = 2.0 ** torch.arange(-120, 127, 3, dtype=dtype).unsqueeze(1)
    rows = x.repeat(1, 6)
    rows[:, 2] = torch.nextafter(x, x.new_full((), torch.inf)).squeeze(1)
    steps = numerics.std(rows).double() / x[:, 0].double() / torch.finfo(dtype).eps
    # The mean is rounded to a digit that is as large as the spread.
    torch.testing.assert_close(steps, torch.full_like(steps, 6**-0.5), rtol=0.3, atol=0)


@every_dtype
@every_way
def test_what_is_bent_is_bent_as_the_docstrings_say(
    dtype: torch.dtype, way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    limits = torch.finfo(dtype)
    eps = numerics.eps_for(dtype)

    def at(op: object, *numbers: float) -> tuple[list[float], list[list[float]]]:
        inputs = [torch.tensor([number], dtype=dtype) for number in numbers]
        value, gradients = value_and_gradients(op, inputs)  # type: ignore[arg-type]
        return value.tolist(), [2 * g[0].item() for g in gradients]  # type: ignore[return-value]

    for number in (0.0, -1.0):
        assert at(numerics.sqrt, number) == ([0.0], [0.0])
        [floor], [slope] = at(numerics.log, number)
        assert floor == pytest.approx(math.log(eps), rel=0.01)
        assert slope == 0
    assert at(numerics.exp, 1e4) == ([limits.max], [0.0])
    assert at(numerics.divide, 3.0, 0.0) == ([0.0], [0.0, 0.0])
    assert at(numerics.divide, 0.0, 0.0) == ([0.0], [0.0, 0.0])
    assert at(numerics.divide, 3.0, eps / 4) == ([0.0], [0.0, 0.0])
    assert at(lambda a, b: numerics.divide(a, b, fill=7.0), 3.0, 0.0) == ([7.0], [0.0, 0.0])
    assert at(numerics.divide, -limits.max, 1e-4) == ([limits.min], [0.0, 0.0])
    value, gradients = value_and_gradients(numerics.norm, [torch.zeros(2, 6, dtype=dtype)])
    assert value.tolist() == [0, 0]
    assert not gradients[0].any()
    huge = torch.full((2, 6), limits.max, dtype=dtype)
    value, gradients = value_and_gradients(numerics.norm, [huge])
    assert value.tolist() == [limits.max] * 2
    assert not gradients[0].any()
    short = torch.full((1, 6), eps / 8, dtype=dtype)
    value, gradients = value_and_gradients(numerics.normalize, [short])
    assert not value.any()
    assert not gradients[0].any()


@every_way
@every_dtype
def test_empty_single_and_fully_masked_rows(
    dtype: torch.dtype, way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    lowest = torch.finfo(dtype).min
    for size in (0, 1):
        value, gradients = value_and_gradients(numerics.std, [torch.ones(3, size, dtype=dtype)])
        assert value.tolist() == [0, 0, 0]
        assert not gradients[0].any()
        assert numerics.var(torch.ones(3, size, dtype=dtype)).tolist() == [0, 0, 0]
    nothing = torch.ones(3, 0, dtype=dtype)
    assert numerics.norm(nothing).tolist() == [0, 0, 0]
    assert numerics.normalize(nothing).shape == (3, 0)
    assert numerics.logsumexp(nothing).tolist() == [lowest] * 3
    assert numerics.sqrt(nothing).shape == numerics.log(nothing).shape == (3, 0)
    assert numerics.masked_softmax(nothing).shape == (3, 0)
    none = torch.zeros(2, 6, dtype=torch.bool)
    poison = torch.full((2, 6), math.nan, dtype=dtype)
    for op, expected in (
        (lambda x: numerics.masked_mean(x, none, -1), 0.0),
        (lambda x: numerics.masked_mean(x, none), 0.0),
        (lambda x: numerics.masked_softmax(x, none), 0.0),
        (lambda x: numerics.masked_log_softmax(x, none), lowest),
    ):
        value, gradients = value_and_gradients(op, [poison])
        assert (value == expected).all()
        assert not gradients[0].any()
    for op, expected in (
        (numerics.masked_softmax, 0.0),
        (numerics.masked_log_softmax, lowest),
        (numerics.logsumexp, lowest),
    ):
        value, gradients = value_and_gradients(op, [poison.nan_to_num(-math.inf)])
        assert (value == expected).all()
        assert not gradients[0].any()


@every_way
def test_what_lies_under_a_mask_is_never_touched(way: str, request: pytest.FixtureRequest) -> None:
    go(way, request)
    x = torch.randn(3, 6)
    spoilt = x.masked_fill(~MASK, math.nan)
    for case in CASES:
        if case.name.startswith("masked"):
            clean, clean_gradients = value_and_gradients(case.stable, [x])
            value, gradients = value_and_gradients(case.stable, [spoilt])
            assert torch.equal(value, clean)
            assert torch.equal(gradients[0], clean_gradients[0])


@every_case
@every_way
def test_nan_is_not_hidden(case: Case, way: str, request: pytest.FixtureRequest) -> None:
    go(way, request)
    inputs = [item.detach().clone() for item in cases.regular(case, torch.float32)]
    inputs[0][0, 0] = math.nan
    assert case.stable(*inputs).isnan().any()
    inputs[0][1] = 0.0  # and beside a singular row
    assert case.stable(*inputs).isnan().any()


@every_way
def test_keepdim_and_other_dimensions(way: str, request: pytest.FixtureRequest) -> None:
    go(way, request)
    x = torch.randn(3, 5, 4)
    x[0, :, 0] = 0
    for op in (numerics.norm, numerics.std, numerics.logsumexp, numerics.var):
        for dim in (0, 1, -1):
            kept = op(x, dim, True)
            assert kept.shape[dim] == 1
            assert torch.equal(op(x, dim), kept.squeeze(dim))
    assert numerics.normalize(x, 1).norm(dim=1)[0, 1:].tolist() == pytest.approx([1] * 3)
    mask = torch.rand(3, 5, 4) < 0.5
    assert numerics.masked_mean(x, mask, (0, 2), True).shape == (1, 5, 1)
    assert numerics.masked_mean(x, mask, (0, 2)).shape == (5,)
    assert numerics.masked_mean(x, mask).item() == pytest.approx(x[mask].mean().item(), abs=1e-6)
    assert numerics.masked_softmax(x, mask, 1).sum(1).gt(1.1).sum() == 0


@every_way
def test_divide_takes_numbers_broadcasts_and_promotes(
    way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    x = torch.tensor([[2.0, 0.0], [4.0, 8.0]], requires_grad=True)
    assert numerics.divide(8, x).tolist() == [[4, 0], [2, 1]]
    assert numerics.divide(x, 2).tolist() == [[1, 0], [2, 4]]
    assert numerics.divide(x, 0).tolist() == [[0, 0], [0, 0]]
    assert numerics.divide(torch.tensor(1), torch.tensor(0)).item() == 0
    row = torch.tensor([0.0, 2.0], requires_grad=True)
    numerics.divide(x, row).sum().backward()
    assert row.grad is not None
    assert row.grad.tolist() == [0, -2]
    assert numerics.divide(x.half(), row).dtype == torch.float32


def test_both_ways_around_squares_that_do_not_fit_agree() -> None:
    x = torch.randn(40, 6) * 10.0 ** torch.arange(-40, 40, 2).unsqueeze(1)
    assert x.isfinite().all()
    exact = torch.linalg.vector_norm(x.double(), dim=1, keepdim=True).float()
    assert torch.equal(row_norms.in_double(x, 1), exact)
    torch.testing.assert_close(row_norms.rescaled(x, 1), exact, rtol=2.4e-7, atol=1e-44)


@every_way
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_sums_that_do_not_fit_do_not_spoil_what_does(
    dtype: torch.dtype, way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    large = torch.finfo(dtype).max
    rows = torch.tensor([[0.9, 0.8, 0.7, 0.9, 0.8, 0.9], [-0.9, 0.9, 0.1, 0.2, 0.3, 0.4]])
    for name in ("std", "masked_mean"):
        case = BY_NAME[name]
        ours, [gradient] = value_and_gradients(case.stable, [rows.to(dtype) * large])
        exact, [right] = value_and_gradients(case.plain, [rows.double()])
        torch.testing.assert_close((ours / large).double(), exact, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=1e-5)


@every_way
def test_whole_numbers_are_taken_as_torch_takes_them(
    way: str, request: pytest.FixtureRequest
) -> None:
    go(way, request)
    whole = torch.tensor([0, 4])
    assert numerics.sqrt(whole).tolist() == [0, 2]
    assert numerics.exp(whole)[0] == 1
    assert numerics.log(whole).isfinite().all()
    assert numerics.masked_mean(whole, whole > 0).item() == 4


def test_the_mask_is_boolean() -> None:
    x = torch.randn(2, 6)
    for op in (numerics.masked_mean, numerics.masked_softmax, numerics.masked_log_softmax):
        with pytest.raises(TypeError, match="bool"):
            op(x, MASK.float())


def test_looking_is_for_cpus_outside_of_compilation() -> None:
    assert _shared.can_read_condition(torch.ones(1))
    assert not _shared.can_read_condition(torch.ones(1, device="meta"))
    assert not _shared.can_read_condition(torch.ones(0))
