"""Which parameters the optimizer is meant to train, as plain data a check can keep."""

from __future__ import annotations

from headway.core.parameters import Parameters


def trained(parameters: Parameters) -> list[int]:
    """Positions that are trainable and held by an optimizer, in the order of the axis."""
    roles = (parameters.trainable, parameters.optimized)
    known = [role for role in roles if role is not None]
    return [
        position
        for position in range(len(parameters.names) or len(parameters.numel))
        if all(position in role for role in known)
    ]


def trained_weights(parameters: Parameters) -> dict[int, int]:
    """Position → number of elements of every trained parameter that is no bias and no norm's gain.

    Biases and gains may start at 0 and may have next to no gradient for good reasons, so questions
    about sizes are asked of the weights only. Empty when the source does not tell the sizes.
    """
    apart = parameters.norm_or_bias or frozenset()
    return {
        position: parameters.numel[position]
        for position in trained(parameters)
        if position not in apart and position < len(parameters.numel)
    }
