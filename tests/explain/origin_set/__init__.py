"""The set of origins: small training steps that go bad, with the answer to each."""

from explain.origin_set import (
    attention,
    cnn,
    contrastive,
    detection,
    diffusion,
    half,
    mlp,
    rnn,
    twists,
)
from explain.origin_set.scenario import Case, Scenario

SCENARIOS = (
    *mlp.SCENARIOS,
    *cnn.SCENARIOS,
    *rnn.SCENARIOS,
    *attention.SCENARIOS,
    *detection.SCENARIOS,
    *contrastive.SCENARIOS,
    *diffusion.SCENARIOS,
    *half.SCENARIOS,
    *twists.SCENARIOS,
)

__all__ = ["SCENARIOS", "Case", "Scenario"]
