"""What could help, each as something that can be in force for one pass of the failing step.

    base.py            what a remedy is; advice, which nobody can try here
    samples.py         guilty samples replaced by healthy ones of the same batch
    bisection.py       finding the guilty samples where nobody named them
    guard_input.py     an eps or a clamp at the user's own line; guards/ has one file per family
    island.py          one module outside autocast, in float32
    bf16.py            bfloat16 where autocast says float16
    fp32.py            everything in float32
    math_attention.py  attention by its plain formula
    eager.py           without torch.compile
    deterministic.py   deterministic algorithms only

The rest are tools of these: regions.py (autocast), half_free.py (no half precision), precision.py
(whether it took part), compiled.py (torch.compile), rows.py and rebuilt.py (batches), edits.py (the
user's line, rewritten), opened.py (torch's own Python).
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
