"""Fused CUDA kernels of the stable ops, and when they are launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.numerics import _torch_compat

# The kernels are launched on a GPU, for ordinary tensors.

# On a GPU the input is not inspected first, and the safe form in plain torch needs more passes and
# more launches than the naive op. The kernels need no more than the naive op. Under
# `torch.compile`, in `vmap` and `torch.func`, under a dispatch mode or for a subclass of Tensor,
# the plain form runs, because none of these sees a kernel. It also runs where the kernels cannot be
# compiled, and with a torch that lacks one of the private names used here.

_transformed, _watching_modes = _torch_compat.transforms_active, _torch_compat.dispatch_depth
_tracing, _keys = _torch_compat.is_tracing, _torch_compat.dispatch_keys


def can_fuse(x: Tensor, *others: Tensor) -> bool:
    """Whether the kernels may be used for these tensors."""
    if torch.compiler.is_compiling() or not _on_gpu(x):
        return False
    return may_launch(x, *others)


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def may_launch(*tensors: Tensor) -> bool:
    """Whether the kernels work there, and no mode or tracer must see their launches."""
    if not (_transformed and _watching_modes and _tracing and _keys):
        return False
    if _transformed() or _watching_modes() or _tracing():
        return False
    first = tensors[0]
    ordinary = _WORKS.get((first.device, first.dtype))
    if ordinary is None:
        ordinary = _works(first)
    for item in tensors:
        if _keys(item).raw_repr() not in ordinary:
            return False
    return first.numel() > 0


def needs_plain_backward(gradient: Tensor) -> bool:
    """Whether this backward may be differentiated again, or must not use a kernel."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or not may_launch(gradient)


def differentiate_plain_form(
    op: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients through the plain form, which can be differentiated again."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        seen = [item if twice else item.detach().requires_grad_() for item in inputs]
        wanted = [item for item in seen if item.requires_grad]
        found = iter(torch.autograd.grad(op(*seen), wanted, gradient, create_graph=twice))
        return tuple(next(found) if item.requires_grad else None for item in seen)


def launch(kernel: Kernel, tensors: tuple[Tensor, ...], numbers: dict[str, float]) -> Any:
    """Launch a kernel; torch compiles it at the first call with a dtype, and caches it on disk.

    The signature is that of `torch.cuda.jiterator`. The numbers are in the order of the kernel's
    parameters.
    """
    return _torch_compat.launch_kernel(
        kernel.code, kernel.name, kernel.outputs > 1, kernel.outputs, tensors, numbers
    )


_NEVER: frozenset[int] = frozenset()
_WORKS: dict[tuple[torch.device, torch.dtype], frozenset[int]] = {}
"""Dispatch keys of the tensors that kernels support, by device and dtype; empty if they fail."""


def _works(x: Tensor) -> frozenset[int]:
    """Tested once for each device and dtype: compiling kernels may fail for many reasons."""
    place = (x.device, x.dtype)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return _NEVER  # testing waits for the device, which is not allowed during a capture
    right = x.dtype.is_floating_point and _is_right(*place)
    _WORKS[place] = _ordinary_keys(x.device) if right else _NEVER
    return _WORKS[place]


def _is_right(device: torch.device, dtype: torch.dtype) -> bool:

    try:
        _ordinary_keys(device)
        a, b = torch.tensor([[3.0, 1.0], [2.0, 0.0]], device=device, dtype=dtype)
        g = torch.ones((), device=device, dtype=dtype).expand(2)
        limits = {"eps": 0.5, "largest": 1000.0}
        found = [
            quotient(a, b, fill=7.0, **limits),
            *quotient_backward(g, a, b, **limits),
        ]
        return [item.tolist() for item in found] == [[1.5, 7.0], [0.5, 0.0], [-0.75, 0.0]]
    except Exception:  # whatever a compiler raises: the plain form does the same work
        return False


@cache
def _ordinary_keys(device: torch.device) -> frozenset[int]:
    """Dispatch keys of a plain tensor: no subclass, no batch of `vmap`."""
    plain = torch.empty(0, device=device)
    with torch.inference_mode():
        inference = torch.empty(0, device=device)
    return frozenset(_torch_compat.dispatch_keys(item).raw_repr() for item in (plain, inference))


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """Its `apply`, without the overhead for `torch.func`: `can_fuse` has excluded that."""
    apply: Callable[..., Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


# The elementwise parts of the ops, in C++ for torch's own just-in-time compiler on a GPU.

# `torch.cuda.jiterator` makes one kernel of each: one pass over the memory, launched as cheaply as
# torch's own ops. It broadcasts, promotes, takes any strides, and computes half types in float32.
# Sums and norms of rows remain torch's own, so that their bits do.

# NaN is propagated: every bound is a comparison that is false for NaN. Divisions and roots round
# correctly, as in torch. `can_fuse` decides whether these kernels or the plain form runs.


class Kernel:
    """A function of one element of each tensor, and of numbers that are the same for all."""

    def __init__(self, code: str, *numbers: str, outputs: int = 1) -> None:
        self.code = f"template <typename T> {code}"
        self.name = code.split("(")[0].split()[-1]
        self.numbers = numbers
        self.outputs = outputs

    def __call__(self, *tensors: Tensor, **numbers: float) -> Any:
        return launch(self, tensors, numbers)


root = Kernel("T root(T x) { return x <= T(0) ? T(0) : ::sqrt(x); }")
root_backward = Kernel(
    "T root_backward(T g, T root) { return root <= T(0) ? T(0) : g / (T(2) * root); }"
)

logarithm = Kernel("T logarithm(T x, T floor) { return ::log(x <= floor ? floor : x); }", "floor")
logarithm_backward = Kernel(
    "T logarithm_backward(T g, T x, T floor) { return x <= floor ? T(0) : g / x; }", "floor"
)

exponential = Kernel(
    """T exponential(T x, T largest) {
        T e = ::exp(x);
        return e > largest ? largest : e;
    }""",
    "largest",
)
exponential_backward = Kernel(
    "T exponential_backward(T g, T e, T largest) { return e >= largest ? T(0) : g * e; }",
    "largest",
)

quotient = Kernel(
    """T quotient(T a, T b, T fill, T eps, T largest) {
        if (::fabs(b) < eps) return fill;
        T q = a / b;
        return q > largest ? largest : q < -largest ? -largest : q;
    }""",
    "fill",
    "eps",
    "largest",
)
quotient_backward = Kernel(
    """void quotient_backward(T g, T a, T b, T eps, T largest, T& to_a, T& to_b) {
        T q = a / b;
        bool bent = ::fabs(b) < eps || ::fabs(q) > largest;
        T slope = q / b;
        slope = slope > largest ? largest : slope < -largest ? -largest : slope;
        to_a = bent ? T(0) : g / b;
        to_b = bent ? T(0) : -g * slope;
    }""",
    "eps",
    "largest",
    outputs=2,
)

# Rows whose squares do not fit are multiplied by a power of two, which loses no bit: by `down` if
# the largest entry, `size`, is above `big`, and by `up` if it is below `small`. Afterwards the
# square of its last digit fits, too: that may be all the spread a row has.
SCALE = {
    torch.float32: {"big": 2.0**50, "small": 2.0**-38, "down": 2.0**-75, "up": 2.0**88},
    torch.float16: {"big": 2.0**20, "small": 2.0**-4, "down": 1.0, "up": 2.0**14},
    torch.float64: {"big": 2.0**400, "small": 2.0**-400, "down": 2.0**-600, "up": 2.0**700},
}
SCALE[torch.bfloat16] = SCALE[torch.float32]  # which has the same exponents
_SCALE = ("big", "small", "down", "up")
_FACTOR = "(size > big ? down : size < small ? up : T(1))"

scaled = Kernel(
    f"T scaled(T x, T size, T big, T small, T down, T up) {{ return x * {_FACTOR}; }}", *_SCALE
)
unscaled = Kernel(
    f"""T unscaled(T found, T size, T big, T small, T down, T up, T largest) {{
        T value = found / {_FACTOR};
        bool finite = size - size == T(0);
        return value > largest && finite ? largest : value;
    }}""",
    *_SCALE,
    "largest",
)

capped = Kernel(
    """T capped(T found, T largest) {
        bool finite = found - found == T(0);
        return found > largest && finite ? largest : found;
    }""",
    "largest",
)

norm_backward = Kernel(
    """T norm_backward(T g, T x, T length, T largest) {
        return length == T(0) || length == largest ? T(0) : x / length * g;
    }""",
    "largest",
)

per_length = Kernel(
    """T per_length(T g, T length, T largest) {
        return length == T(0) || length == largest ? T(0) : g / length;
    }""",
    "largest",
)

divisor = Kernel(
    "T divisor(T length, T eps, T infinite) { return length < eps ? infinite : length; }",
    "eps",
    "infinite",
)
unit = Kernel(
    "T unit(T x, T length, T eps) { return length < eps ? T(0) : x / length; }",
    "eps",
)
unit_along = Kernel(
    "T unit_along(T g, T x, T length, T eps) { return length < eps ? T(0) : g * (x / length); }",
    "eps",
)
unit_backward = Kernel(
    """T unit_backward(T g, T x, T length, T along, T eps) {
        return length < eps ? T(0) : (g - x / length * along) / length;
    }""",
    "eps",
)

spread_backward = Kernel(
    f"""T spread_backward(
        T g, T x, T size, T mean, T spread,
        T big, T small, T down, T up, T largest, T freedom
    ) {{
        T factor = {_FACTOR};
        if (spread == T(0) || spread / factor >= largest) return T(0);
        return (x * factor - mean) / spread * (g / freedom);
    }}""",
    *_SCALE,
    "largest",
    "freedom",
)

# For half types a value per row is stored as two: the part that fits the type, and the rest. With a
# wider operand the result would be wide, and need another pass.
spread_backward_in_half = Kernel(
    f"""T spread_backward_in_half(
        T g, T scaled, T size, T mean, T rest, T spread,
        T big, T small, T down, T up, T largest, T freedom
    ) {{
        if (spread == T(0) || spread / {_FACTOR} >= largest) return T(0);
        return (scaled - mean - rest) / spread * (g / freedom);
    }}""",
    *_SCALE,
    "largest",
    "freedom",
)
variance_backward_in_half = Kernel(
    """T variance_backward_in_half(T g, T x, T mean, T rest, T share) {
        return (x - mean - rest) * (g * share);
    }""",
    "share",
)

full_sum = Kernel(
    "T full_sum(T total, T empty, T lowest) { return total == empty ? lowest : total; }",
    "empty",
    "lowest",
)
full_sum_backward = Kernel(
    "T full_sum_backward(T g, T x, T total) { return g * ::exp(x - total); }"
)

# Below the largest entry of a row, which every type has exactly.
below = Kernel(
    """T below(T x, T top) {
        bool finite = top - top == T(0);
        return ::exp(finite ? x - top : x);
    }"""
)
sum_below = Kernel(
    """T sum_below(T sum, T top, T lowest) {
        bool finite = top - top == T(0);
        return sum == T(0) ? lowest : ::log(sum) + (finite ? top : T(0));
    }""",
    "lowest",
)
top_share = Kernel("T top_share(T g, T top, T total) { return g * ::exp(top - total); }")
share_below = Kernel(
    "T share_below(T x, T top, T share) { return x == top ? share : share * ::exp(x - top); }"
)

counted = Kernel(
    """void counted(T x, T mask, T smaller, T& kept, T& less) {
        kept = mask != T(0) ? x : T(0);
        less = kept * smaller;
    }""",
    "smaller",
    outputs=2,
)
mean_counted = Kernel(
    """T mean_counted(T total, T less, T count, T smaller) {
        T n = count < T(1) ? T(1) : count;
        bool finite = total - total == T(0);
        return finite ? total / n : less / (n * smaller);
    }""",
    "smaller",
)
share_counted = Kernel(
    "T share_counted(T g, T count) { return g / (count < T(1) ? T(1) : count); }"
)
kept = Kernel("T kept(T x, T mask) { return mask != T(0) ? x : T(0); }")
counted_backward = Kernel(
    """T counted_backward(T g, T mask, T count) {
        return mask != T(0) ? g / (count < T(1) ? T(1) : count) : T(0);
    }"""
)

filled = Kernel(
    "T filled(T x, T mask, T nothing) { return mask == T(0) ? nothing : x; }", "nothing"
)
shares_of = Kernel(
    "T shares_of(T share, T filled, T nothing) { return filled == nothing ? T(0) : share; }",
    "nothing",
)
logs_of = Kernel(
    """T logs_of(T found, T filled, T nothing, T lowest) {
        return filled == nothing || found < lowest ? lowest : found;
    }""",
    "nothing",
    "lowest",
)
