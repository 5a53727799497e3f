"""Six views trained for real: they come to find each other, with every score that claims to work.

"coordinate-sixth" (17) does not: its logit hardly depends on the other five vectors, so there is
nothing to contrast. "coordinate-spread" (15) rewards vectors for being uneven, and learns little.
"""

from __future__ import annotations

import pytest
from support.six_view_training import train

from headway.numerics.nway.contrastive_loss import SCORES

WELL = {"coordinate-spread": 0.1, "product": 0.2, "coordinate-sixth": None}


@pytest.mark.parametrize("score", [name for name in SCORES if WELL.get(name, 0.6) is not None])
def test_retrieval_rises(score: str) -> None:
    before, after = train(score, steps=60)
    assert before < 0.05
    assert after > WELL.get(score, 0.6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "score", ["norm", "product", "leave-one-out", "variance", "std", "distance"]
)
def test_retrieval_becomes_good(score: str) -> None:
    assert train(score, steps=400)[1] > 0.9
