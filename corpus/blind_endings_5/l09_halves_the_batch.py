"""The allocator refuses an attention matrix; the script halves the sequence until it fits, as
accelerate does."""

import functools

import torch
from torch import nn


def fits(function):
    @functools.wraps(function)
    def call(length, *arguments):
        while True:
            try:
                return function(length, *arguments)
            except RuntimeError as error:
                if "allocate" not in str(error) or length == 1:
                    raise
                length //= 64

    return call


@fits
def train(length, model, optimizer):
    for _ in range(50):
        x = torch.ones(1, 1).expand(length, 4) if length > 10_000 else torch.randn(length, 4)
        scores = model(x)
        attention = torch.softmax(scores @ scores.T, 1)
        loss = (attention @ scores - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return length


torch.manual_seed(0)
layer = nn.Linear(4, 4)
print("fits", train(16_000_000, layer, torch.optim.Adam(layer.parameters(), lr=1e-3)))
