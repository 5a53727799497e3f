"""Self-distillation with a momentum teacher."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
student = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)


@torch.no_grad()
def update_teacher(m=0.95):
    for ps, pt in zip(student.parameters(), teacher.parameters()):
        pt.mul_(m).add_(ps, alpha=1 - m)


centers = 1.5 * torch.randn(5, 16)
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(120):
    y = torch.randint(0, 5, (32,))
    x = centers[y] + torch.randn(32, 16)
    u = centers[torch.randint(0, 5, (64,))] + torch.randn(64, 16)
    ce = F.cross_entropy(student(x), y)
    with torch.no_grad():
        soft = F.softmax(teacher(u), dim=1)
    distill = F.kl_div(F.log_softmax(student(u), dim=1), soft, reduction="batchmean")
    loss = ce + 0.5 * distill
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_teacher()
    if step % 15 == 0:
        print(f"step {step} ce {ce.item():.4f} distill {distill.item():.4f}")
