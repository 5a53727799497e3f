"""A project's own library of losses: what goes wrong in a script goes wrong here."""

from __future__ import annotations

import functools
import math

import torch


def causal_prior(net):
    """A regulariser with a mask in it: its -inf are meant, and harmless."""
    w = next(net.parameters()).flatten()[:4]
    scores = torch.outer(w, w)
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    return scores.softmax(-1).square().mean()


def entropy(p):
    return -(p * torch.log(p)).sum(-1)  # born here: entropy_from_another_file


def normalise(v):
    total = v.sum(-1, keepdim=True)
    return v / total  # born here: helper_called_twice


def averaged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs).mean()

    return wrapper


@averaged
def relative_error(pred, target):
    difference = (pred - target).abs()
    return difference / target.abs()  # born here: decorated_loss
