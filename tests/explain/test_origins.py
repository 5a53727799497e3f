"""Every kind of origin from a real op, forward and backward, and neighbours that are none of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from explain.bad_calls import backward_origin, forward_origin, origins_of
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor, tensor

from headway.explain.explanation import Operand
from headway.explain.origin import classify_origin
from headway.explain.origin.bad_call import BadCall, classify_leaf

INF = math.inf
HALF = torch.float16
ZERO_ROW = tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
FIRST = tensor([[True, False, False]])
NO_LABEL = tensor([-100, -100])

FORWARD = [
    ("log-of-zero", torch.log, (tensor([0.0, 1.0]),)),
    ("log-of-zero", torch.log2, (tensor([0.0, 1.0]),)),
    ("log-of-zero", torch.log1p, (tensor([-1.0, 1.0]),)),
    ("log-of-zero", torch.logit, (tensor([1.0, 0.5]),)),
    ("log-of-zero", torch.xlogy, (tensor([1.0, 1.0]), tensor([0.0, 1.0]))),
    ("log-of-zero", lambda x: (x + 0).log_(), (tensor([0.0, 1.0]),)),
    ("log-of-zero", lambda x: torch.log(x + 1e-8), (torch.zeros(2, dtype=HALF),)),
    ("log-of-negative", torch.log, (tensor([-0.5, 0.0]),)),
    ("log-of-negative", torch.log1p, (tensor([-1.5, 1.0]),)),
    ("log-of-negative", lambda x: (x + 0).log_(), (tensor([-1.0, 1.0]),)),
    ("sqrt-of-negative", torch.sqrt, (tensor([-1e-7, 1.0]),)),
    ("sqrt-of-negative", torch.rsqrt, (tensor([-1.0, 1.0]),)),
    ("division-by-zero", torch.rsqrt, (tensor([0.0, 1.0]),)),
    ("division-by-zero", torch.div, (tensor([3.0, 1.0]), tensor([0.0, 1.0]))),
    ("division-by-zero", lambda x: x / 0, (tensor([3.0, 1.0]),)),
    ("division-by-zero", lambda x: 1 / x, (tensor([0.0, 1.0]),)),
    ("division-by-zero", lambda x: x % 0, (tensor([3.0, 1.0]),)),
    ("division-by-zero", lambda x: (x + 0).div_(tensor([0.0, 1.0])), (tensor([3.0, 1.0]),)),
    ("zero-over-zero", torch.div, (tensor([0.0, 1.0]), tensor([0.0, 1.0]))),
    ("zero-over-zero", lambda x: (x * 0).sum() / tensor(0), (tensor([1.0]),)),
    ("zero-over-zero", lambda x: x / tensor([[3.0], [0.0]]), (ZERO_ROW,)),
    ("zero-over-zero", lambda x: x / x.sum(1, keepdim=True), (ZERO_ROW,)),
    ("norm-at-zero", lambda x: x / x.norm(dim=1, keepdim=True), (ZERO_ROW,)),
    ("norm-at-zero", lambda x: F.normalize(x, dim=1, eps=0.0), (ZERO_ROW,)),
    ("norm-at-zero", lambda x: F.cosine_similarity(x, x + 1, eps=0.0), (ZERO_ROW,)),
    ("norm-at-zero", lambda v, g: torch._weight_norm(v, g, 0), (ZERO_ROW, torch.ones(2, 1))),
    (
        "std-singular",
        lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
        (ZERO_ROW + 5,),
    ),
    ("std-singular", lambda x: F.layer_norm(x, (3,), eps=0.0), (ZERO_ROW,)),
    ("std-singular", lambda x: F.group_norm(x, 1, eps=0.0), (ZERO_ROW,)),
    ("sqrt-of-negative", lambda x: F.batch_norm(x, torch.zeros(3), -torch.ones(3)), (ZERO_ROW,)),
    ("pow-singular", lambda x: x**-2, (tensor([0.0, 1.0]),)),
    ("pow-singular", lambda x: x**0.3, (tensor([-2.0, 1.0]),)),
    ("pow-singular", torch.pow, (tensor([0.0, 1.0]), tensor([-0.5, 1.0]))),
    ("pow-singular", lambda y: torch.pow(0.0, y), (tensor([-0.5, 1.0]),)),
    ("acos-at-one", torch.acos, (tensor([1.0 + 2e-7, 0.5]),)),
    ("acos-at-one", torch.asin, (tensor([-1.5, 0.5]),)),
    ("acos-at-one", torch.atanh, (tensor([1.0, 0.5]),)),
    ("acos-at-one", torch.erfinv, (tensor([1.0, 0.5]),)),
    ("exp-overflow", torch.exp, (tensor([120.0, 1.0]),)),
    ("exp-overflow", torch.exp, (tensor([12.0, 1.0], dtype=HALF),)),
    ("exp-overflow", torch.cosh, (tensor([-120.0, 1.0]),)),
    ("exp-overflow", lambda x: (x + 0).exp_(), (tensor([120.0, 1.0]),)),
    ("exp-overflow", lambda x: F.poisson_nll_loss(x, x), (tensor([120.0, 1.0]),)),
    ("overflow", lambda x: x @ x.t(), (torch.full((2, 4), 300.0, dtype=HALF),)),
    ("overflow", lambda x: x**2, (torch.full((2, 4), 300.0, dtype=HALF),)),
    ("overflow", lambda x: x.sum(), (torch.full((1000,), 300.0, dtype=HALF),)),
    ("overflow", lambda x: x.norm(), (torch.full((1000,), 3000.0, dtype=HALF),)),
    ("overflow", lambda x: x.half(), (tensor([1e6]),)),
    ("overflow", lambda x: x - 1e9, (torch.ones(2, dtype=HALF),)),
    ("overflow", lambda x: x / 1e-9, (torch.full((2,), 300.0, dtype=HALF),)),
    ("overflow", lambda x: x.var(), (tensor([1e30, -1e30]),)),
    ("overflow", lambda x: x * x, (tensor([1e200], dtype=torch.float64),)),
    ("overflow", lambda x: F.mse_loss(x, -x), (torch.full((4,), 300.0, dtype=HALF),)),
    ("std-singular", lambda x: x.std(1), (torch.ones(2, 1),)),
    ("std-singular", lambda x: x.var(1), (torch.ones(2, 1),)),
    ("mean-of-nothing", lambda x: x[x > 5].mean(), (tensor([1.0]),)),
    ("mean-of-nothing", lambda x: F.mse_loss(x[x > 5], x[x > 5]), (tensor([1.0]),)),
    ("mean-of-nothing", lambda x: F.smooth_l1_loss(x[x > 5], x[x > 5]), (tensor([1.0]),)),
    ("mean-of-nothing", lambda x: F.cross_entropy(x, NO_LABEL), (ZERO_ROW,)),
    ("mean-of-nothing", lambda x: F.cross_entropy(x[:0], NO_LABEL[:0]), (ZERO_ROW,)),
    (
        "mean-of-nothing",
        lambda x: F.cross_entropy(x, tensor([0, 0]), weight=tensor([0.0, 1.0, 1.0])),
        (ZERO_ROW,),
    ),
    ("infinity-minus-infinity", lambda x: torch.softmax(x, 0), (tensor([INF, 1.0]),)),
    ("infinity-minus-infinity", lambda x: x.sum(), (tensor([INF, -INF]),)),
    ("zero-times-infinity", lambda x: x * -INF, (tensor([0.0, 1.0]),)),
    ("zero-times-infinity", lambda x: x @ tensor([[0.0], [1.0]]), (tensor([[INF, 1.0]]),)),
    (
        "log-of-zero",
        lambda x: F.ctc_loss(x.log_softmax(-1), tensor([[1, 2, 1]]), tensor([2]), tensor([3])),
        (torch.zeros(2, 1, 3),),
    ),
    ("log-of-zero", torch.lgamma, (tensor([0.0, 1.0]),)),
    ("log-of-zero", torch.lgamma, (tensor([-3.0, 1.0]),)),
    ("division-by-zero", torch.digamma, (tensor([0.0, 1.0]),)),
    ("unknown", lambda x: torch.polygamma(1, x), (tensor([0.0, 1.0]),)),
]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(("kind", "function", "values"), FORWARD)
def test_a_forward_origin_has_its_kind(kind, function, values) -> None:
    assert forward_origin(function, *values).name == kind


def _masked(x: Tensor) -> Tensor:
    return x.masked_fill(FIRST, -INF)


MASKED = [
    ("masked-softmax-row", lambda x: torch.softmax(x, 1), tensor([[-INF, -INF], [0.0, 1.0]])),
    ("masked-softmax-row", lambda x: torch.log_softmax(x, 1), tensor([[-INF, -INF], [0.0, 1.0]])),
    ("masked-softmax-row", lambda x: torch.logsumexp(x, 1), tensor([[-INF, -INF], [0.0, 1.0]])),
    ("infinity-minus-infinity", lambda x: x - x.amax(1, True), tensor([[-INF, -INF], [0.0, 1.0]])),
    ("masked-target", lambda x: F.cross_entropy(_masked(x), tensor([1, 0])), ZERO_ROW),
    ("masked-target", lambda x: _masked(x).gather(1, tensor([[0], [1]])), ZERO_ROW),
    ("masked-target", lambda x: _masked(x) * 0.5, ZERO_ROW),
]
_MASKING = ("masked_fill", "amax", "log_softmax", "detach")


@pytest.mark.parametrize(("kind", "function", "value"), MASKED)
def test_a_mask_that_is_used_wrongly_has_its_kind(kind, function, value) -> None:
    found = origins_of(function, value, deliberate=True)
    kinds = [
        told.name
        for call, told in found
        if call.op not in _MASKING or torch.isnan(call.output).any()
    ]
    assert kinds[0] == kind


def _slope_of_a_norm(x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(x.norm(dim=1).sum(), x, create_graph=True)
    return slope.pow(2).sum()


BACKWARD = [
    ("sqrt-at-zero", torch.sqrt, (tensor([0.0, 1.0]),)),
    ("sqrt-at-zero", lambda x: (x * x).sum(1).sqrt(), (ZERO_ROW,)),
    ("pow-singular", lambda x: x**0.5, (tensor([0.0, 1.0]),)),
    ("pow-singular", torch.pow, (tensor([0.0, 1.0]), tensor([0.5, 1.0]))),
    ("norm-at-zero", torch.hypot, (tensor([0.0, 1.0]), tensor([0.0, 1.0]))),
    ("norm-at-zero", _slope_of_a_norm, (ZERO_ROW,)),
    ("acos-at-one", torch.acos, (tensor([1.0, 0.5]),)),
    ("acos-at-one", torch.asin, (tensor([-1.0, 0.5]),)),
    ("acos-at-one", torch.atanh, (tensor([1.0, 0.5]),)),
    ("acos-at-one", lambda x: torch.where(x > 1, x, torch.acos(x)), (tensor([1.5, 0.5]),)),
    ("std-singular", lambda x: x.var(1), (torch.ones(2, 1),)),
    ("log-of-zero", torch.special.entr, (tensor([0.0, 1.0]),)),
    (
        "log-of-zero",
        lambda y: F.kl_div(tensor([-1.0, -1.0]), y, reduction="sum"),
        (tensor([0.0, 1.0]),),
    ),
    ("log-of-zero", lambda y: F.binary_cross_entropy(y.detach(), y), (tensor([0.0, 1.0]),)),
    ("masked-softmax-row", lambda x: torch.logsumexp(x, 1), (tensor([[-INF, -INF], [0.0, 1.0]]),)),
    (
        "mean-of-nothing",
        lambda x: F.cross_entropy(x, tensor([0, 0]), weight=tensor([0.0, 1.0, 1.0])),
        (ZERO_ROW,),
    ),
    (
        "division-by-zero",
        lambda x: torch.linalg.eigh(x)[1] * torch.arange(9.0).view(3, 3),
        (torch.eye(3),),
    ),
    (
        "division-by-zero",
        lambda x: torch.linalg.svd(x)[0] * torch.arange(9.0).view(3, 3),
        (torch.eye(3),),
    ),
    ("overflow", lambda x: x * 1e3 * 1e3, (torch.full((2,), 1e-4, dtype=HALF),)),
]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(("kind", "function", "values"), BACKWARD)
def test_a_backward_origin_has_the_kind_of_its_forward_op(kind, function, values) -> None:
    assert backward_origin(function, *values).name == kind


HIDDEN = [
    ("log-of-zero", lambda x: torch.where(x > 0, x.log(), x), tensor([0.0, 1.0])),
    ("sqrt-at-zero", lambda x: torch.where(x > 0, x.sqrt(), x), tensor([0.0, 1.0])),
    ("division-by-zero", lambda x: torch.where(x > 0, 1 / x, x), tensor([0.0, 1.0])),
    ("division-by-zero", lambda x: torch.where(x > 0, (x + 1) / x, x), tensor([0.0, 1.0])),
    ("exp-overflow", lambda x: torch.where(x < 50, x.exp(), x), tensor([100.0, 1.0])),
]


@pytest.mark.parametrize(("kind", "function", "value"), HIDDEN)
def test_what_where_hides_in_forward_is_told_by_its_op(kind, function, value) -> None:
    told = [
        told for call, told in origins_of(function, value) if call.node and _has_nan(call.output)
    ]
    assert {found.name for found in told} == {kind}
    assert "behind torch.where" in told[-1].cause
    assert "0 · inf is NaN" in told[-1].cause


def _has_nan(value: Tensor) -> bool:
    return bool(torch.isnan(value).any())


def test_a_slope_that_is_infinite_was_not_hidden() -> None:
    assert "hidden" not in backward_origin(torch.sqrt, tensor([0.0, 1.0])).cause


def _steep(value: float) -> Tensor:
    return torch.full((2,), value, dtype=HALF)


NEIGHBOURS = [
    ("log", lambda x: x.log() * 1e3, (_steep(1e-2),)),
    ("sqrt", lambda x: x.sqrt() * 1e4, (_steep(1e-3),)),
    ("pow", lambda x: x**0.5 * 1e4, (_steep(1e-3),)),
    ("div", lambda x: 1e2 / x, (_steep(1e-2),)),
    ("atanh", lambda x: torch.atanh(x) * 1e4, (_steep(0.999),)),
    ("acos", lambda x: torch.acos(x) * 6e4, (_steep(0.99),)),
    ("exp", lambda x: x.exp() * 1e2, (_steep(7.0),)),
    ("norm", lambda x: x.norm() * 1e4 * 1e4, (_steep(1e-4),)),
    ("std", lambda x: x.std() * 1e4 * 1e4, (tensor([1e-4, 2e-4], dtype=HALF),)),
]


@pytest.mark.parametrize(("op", "function", "values"), NEIGHBOURS, ids=[n[0] for n in NEIGHBOURS])
def test_a_slope_that_is_only_steep_is_no_singular_one(op, function, values) -> None:
    """Where nothing is 0 and nothing at an edge, the gradient is too large, and not infinite."""
    assert backward_origin(function, *values).name == "overflow"


def test_memory_that_a_backward_has_just_allocated_is_no_slope() -> None:
    """AtanhBackward0 allocates with empty_like and writes into it: before, it holds anything."""
    call = BadCall(
        "empty_like",
        (tensor([0.5, 0.5]),),
        {},
        tensor([float("nan"), 1.0]),
        phase="backward",
        node="AtanhBackward0",
    )
    assert classify_origin(call).name == "uninitialised-memory"


def test_a_function_of_the_users_own_is_not_taken_for_torchs_of_that_name() -> None:
    call = BadCall(
        "div",
        (tensor([1.0]), tensor([0.0])),
        {},
        tensor([INF]),
        phase="backward",
        node="LogBackward",
    )
    assert classify_origin(call).name == "division-by-zero"
    assert classify_origin(replace(call, node="LogBackward0")).name == "log-of-zero"
    assert classify_origin(replace(call, node=None, forward_op="log")).name == "log-of-zero"


def test_a_normalisation_with_an_epsilon_is_not_blamed_for_equal_numbers() -> None:
    value = tensor([[3e38, -3e38, 3e38]])
    kinds = {told.name for _, told in origins_of(lambda x: F.layer_norm(x, (3,)), value)}
    assert "std-singular" not in kinds


def test_a_row_that_is_masked_in_part_is_not_blamed() -> None:
    value = tensor([[-INF, 1.0], [INF, 1.0]])
    kind = forward_origin(lambda x: torch.softmax(x, 1), value)
    assert kind.name == "infinity-minus-infinity"


def test_causes_carry_the_numbers_of_the_case() -> None:
    values = torch.ones(8, 80)
    values[0, :3] = 0
    assert forward_origin(torch.log, values).cause == (
        "log of 0: 3 of 640 inputs are exactly 0, and log(0) is -inf"
    )
    big = torch.full((2, 4), 300.0, dtype=HALF)
    cause = forward_origin(lambda x: x @ x.t(), big).cause
    assert "360000" in cause
    assert "65504" in cause
    assert "exp(120) is 1.304e+52" in forward_origin(torch.exp, tensor([120.0])).cause
    assert "3.403e+38" in forward_origin(torch.exp, tensor([120.0])).cause
    assert "in float16 values below 3e-08 become 0" in (
        forward_origin(lambda x: torch.log(x + 1e-8), torch.zeros(2, dtype=HALF)).cause
    )
    lost = forward_origin(lambda x: x / x.norm(dim=1, keepdim=True), ZERO_ROW).cause
    assert "1 of 2 norms is 0" in lost


def test_explaining_leaves_the_operands_as_they_were() -> None:
    running_mean, running_var = torch.zeros(3), torch.ones(3)
    value = torch.full((4, 3), 3e38)
    made = torch.ops.aten.native_batch_norm(
        value, None, None, running_mean, running_var, True, 0.1, 1e-5
    )
    before = running_mean.clone(), running_var.clone(), torch.get_rng_state()
    args = (value, None, None, running_mean, running_var, True, 0.1, 1e-5)
    classify_origin(BadCall("native_batch_norm", args, {}, made[0]))
    assert torch.equal(running_mean, before[0])
    assert torch.equal(running_var, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


def test_arguments_nobody_expects_are_unknown_and_no_error() -> None:
    kind = classify_origin(BadCall("log", (), {}, tensor([math.nan])))
    assert kind.name == "unknown"
    assert "1 of 1 values as NaN or Inf" in kind.cause


LEAVES = [
    ("batch", "poisoned-batch"),
    ("weight", "poisoned-weight"),
    ("buffer", "poisoned-buffer"),
    ("carried", "carried-state"),
    ("uninitialised", "uninitialised-memory"),
    ("constant", "unknown"),
    ("computed", "unknown"),
]


@pytest.mark.parametrize(("role", "kind"), LEAVES)
def test_a_tensor_that_came_bad_is_told_by_its_role(role: str, kind: str) -> None:
    told = classify_leaf(Operand("enc.weight", role, (4, 160), "torch.float32", nan=3))
    assert told.name == kind
    assert "enc.weight" in told.cause
    assert "NaN" in told.cause
    assert told.cause.removesuffix(" (float32 [4, 160])") != told.cause
    assert "3 of 640 values" in told.cause


def test_memory_nobody_wrote_to_is_uninitialised() -> None:
    made = torch.full((4,), math.nan)
    assert classify_origin(BadCall("empty", ([4],), {}, made)).name == "uninitialised-memory"


finite = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@given(st.lists(finite, min_size=1, max_size=8))
@example([0.0, -1.0])
def test_log_is_of_a_negative_one_if_there_is_one_and_else_of_zero(values: list[float]) -> None:
    assume(min(values) <= 0)
    kind = forward_origin(torch.log, tensor(values))
    assert kind.name == ("log-of-negative" if min(values) < 0 else "log-of-zero")
    count = sum(value < 0 for value in values) or sum(value == 0 for value in values)
    assert f"{count} of {len(values)} inputs" in kind.cause


@given(st.lists(st.tuples(finite, st.sampled_from([0.0, 1.0, -2.0])), min_size=1, max_size=8))
@pytest.mark.slow
def test_a_division_is_told_by_what_is_above_the_zero(pairs: list[tuple[float, float]]) -> None:
    assume(any(below == 0 for _, below in pairs))
    above, below = (tensor(list(side)) for side in zip(*pairs, strict=True))
    none = any(one == 0 and two == 0 for one, two in pairs)
    kind = forward_origin(torch.div, above, below)
    assert kind.name == ("zero-over-zero" if none else "division-by-zero")


@given(st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=4))
@pytest.mark.slow
def test_a_norm_is_only_named_where_the_numbers_bear_it_out(rows: list[list[int]]) -> None:
    """With no other vector to check it by, 0/0 is all that is known."""
    assume(any(any(row) for row in rows))
    values = tensor([*rows, [0, 0, 0]], dtype=torch.float32)
    assert forward_origin(lambda x: x / x.norm(dim=1, keepdim=True), values).name in (
        "norm-at-zero",
        "std-singular",
    )
    only = forward_origin(lambda x: x / x.norm(dim=1, keepdim=True), torch.zeros(1, 3))
    assert only.name == "zero-over-zero"


@given(st.floats(1.0, 300.0), st.floats(1.0, 300.0), st.integers(1, 64))
def test_the_true_value_of_an_overflow_is_told(one: float, two: float, inner: int) -> None:
    a = torch.full((1, inner), one, dtype=HALF)
    b = torch.full((inner, 1), two, dtype=HALF)
    exact = float((a.double() @ b.double()).item())
    found = [told for call, told in origins_of(torch.mm, a, b) if call.op == "mm"]
    if exact < 65504:
        assert not found
    elif exact > 65536:
        assert found[0].name == "overflow"
        assert f"{exact:.4g}" in found[0].cause or str(int(exact)) in found[0].cause
