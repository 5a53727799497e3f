"""Loop: a student and the average of its weights as its teacher.

Fault: a momentum of 1 - 1/n with n = 0 in the teacher, between the steps; ops: div reciprocal.
"""

import copy

import torch
from torch import nn

torch.manual_seed(207)
student = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=1e-2)
age = torch.tensor(2.0)
for batch in torch.randn(48, 5).split(8):
    loss = (student(batch) - teacher(batch + 0.1)).square().mean() + student(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    momentum = 1 - 1 / age  # <- origin
    age -= 1
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.mul_(momentum).add_(fast * (1 - momentum))
