"""The cosine of the angle between rows."""

from __future__ import annotations

from torch import Tensor

from headway.numerics.eps import eps_for
from headway.numerics.ops._look import common_dtype, wide
from headway.numerics.ops.direction import normalize


def cosine_similarity(a: Tensor, b: Tensor, dim: int = -1, eps: float | None = None) -> Tensor:
    """The scalar product of the rows, each normalised; 0 with gradient 0 where one of them is zero.

    Exact for rows of any scale, and never out of [-1, 1] by more than rounding. Bent as
    `normalize` is: a row whose norm is below eps counts as zero. (torch's own takes 1e-8 for the
    smallest norm, so two equal rows of 1e-10 are not alike.)
    """
    dtype = common_dtype(a, b)
    least = eps_for(dtype) if eps is None else eps
    product = normalize(wide(a), dim, least) * normalize(wide(b), dim, least)
    return product.sum(dim).to(dtype)
