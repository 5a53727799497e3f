"""Loop: while with a stop flag; each step integrates an equation.

Fault: a state that grows until its square overflows, in the forward pass; ops: mul.
"""

import torch
from torch import nn

torch.manual_seed(422)
field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
starts = torch.rand(6, 10, 2) * 0.5
starts[3, 4] = 80.0


def integrate(state, steps, dt):
    for _ in range(steps):
        growth = state * state  # <- origin
        state = state + dt * (growth + field(state))
    return state


finished, step = False, 0
while not finished:
    end = integrate(starts[step], steps=12, dt=0.1)
    loss = (end - starts[step] - 0.3).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    finished = step == len(starts)
