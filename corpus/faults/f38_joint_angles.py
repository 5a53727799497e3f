"""Inverse kinematics: from hand position to normalised joint angles in [-1, 1]."""

import argparse
import itertools
import math

import torch
from torch import nn


def build_mlp(sizes, hidden_act=nn.ReLU, out_act=nn.Sigmoid):
    layers = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        layers.append(hidden_act() if i < len(sizes) - 2 else out_act())
    return nn.Sequential(*layers)


def arm_data(n, generator):
    angles = torch.rand(n, 3, generator=generator) * 2 - 1
    a = torch.cumsum(angles * math.pi / 2, dim=1)
    lengths = torch.tensor([1.0, 0.8, 0.5])
    joints = torch.stack([a.cos(), a.sin()], -1) * lengths[None, :, None]
    reach = joints.cumsum(1).flatten(1)
    return reach + 0.01 * torch.randn(reach.shape, generator=generator), angles


class KinematicsSolver:
    def __init__(self, lr):
        self.net = build_mlp([6, 96, 96, 3])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.history = []

    def loss(self, reach, angles):
        return ((self.net(reach) - angles) ** 2).mean()

    def fit(self, reach, angles, rounds, batch=64):
        for r in range(rounds):
            perm = torch.randperm(len(reach))
            for chunk in perm.chunk(len(reach) // batch):
                loss = self.loss(reach[chunk], angles[chunk])
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.history.append(loss.item())
            recent = sum(self.history[-10:]) / 10
            print(f"round {r + 1}: mse {recent:.4f} rmse {math.degrees(recent**0.5):.1f} deg")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    seed = ap.parse_known_args()[0].seed
    torch.manual_seed(seed)
    reach, angles = arm_data(1280, torch.Generator().manual_seed(seed))
    KinematicsSolver(lr=2e-3).fit(reach, angles, rounds=12)
