"""A project's own library of losses: what goes wrong in a script goes wrong here."""

from __future__ import annotations

import functools

import torch


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
