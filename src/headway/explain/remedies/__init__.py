"""Remedies, each of which can be applied to one pass of the failing step.

base.py               the interface, and advice that cannot be tested on the step
drop_samples.py       replace the failing samples; bisection to find them
one_line_remedies.py  an eps or clamp at the user's line; bfloat16, eager mode, math attention
float32.py            the whole step, or one module, in float32
edits/                how a call is changed, and how the user's line is rewritten
"""

from headway.explain.remedies.base import Advice, StepRemedy
from headway.explain.remedies.drop_samples import Bisection, DropSamples
from headway.explain.remedies.float32 import Fp32, Fp32Island
from headway.explain.remedies.one_line_remedies import (
    Bf16,
    Deterministic,
    Eager,
    GuardInput,
    MathAttention,
)

__all__ = [
    "Advice",
    "Bf16",
    "Bisection",
    "Deterministic",
    "DropSamples",
    "Eager",
    "Fp32",
    "Fp32Island",
    "GuardInput",
    "MathAttention",
    "StepRemedy",
]
