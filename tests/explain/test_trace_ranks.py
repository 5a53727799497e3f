"""With several ranks every one gets the NaN; only the one that made it finds an origin."""

from __future__ import annotations

import pytest
from support.rank_processes import run_ranks
from support.rank_traces import traced_on


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.slow
def test_only_the_rank_that_made_it_blames_itself(how: str) -> None:
    (bad_here, origins_here), (bad_there, origins_there) = run_ranks(traced_on, 2, how)
    assert bad_here
    assert len(bad_here) == len(bad_there)
    assert origins_here == []
    assert origins_there == [("backward", "sqrt", "(3,)")]
