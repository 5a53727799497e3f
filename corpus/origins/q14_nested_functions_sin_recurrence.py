"""Loop: functions defined in functions.

Fault: gradient that overflows through a recurrence, in the backward pass; ops: sin mul linear.
"""

import torch
from torch import nn


def build():
    torch.manual_seed(114)
    drive = nn.Linear(3, 6)
    head = nn.Linear(6, 1)
    gain = nn.Parameter(torch.full((6,), 60.0))

    def forward(x):
        state = drive(x)
        for _ in range(48):
            state = torch.sin(gain * state)  # <- origin
        return head(state)

    def parameters():
        return [*drive.parameters(), *head.parameters(), gain]

    return forward, parameters


def main():
    forward, parameters = build()
    optimizer = torch.optim.SGD(parameters(), lr=1e-3)

    def run_epoch(data):
        def one(x):
            def update(loss):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

            update((forward(x) - 0.5).square().mean())

        for x in data:
            one(x)

    run_epoch(torch.randn(40, 3).split(8))


main()
