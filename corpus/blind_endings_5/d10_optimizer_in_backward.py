"""The optimizer steps inside backward (post-accumulate-grad hooks); a hook has no optimizer for
a layer."""

import torch
from torch import nn


class InBackward:
    def __init__(self, model):
        self.optimizers = {
            parameter: torch.optim.SGD([parameter], lr=0.02) for parameter in model.parameters()
        }
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.apply)

    def apply(self, parameter):
        optimizer = self.optimizers[parameter]  # HERE
        optimizer.step()
        optimizer.zero_grad()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 18), nn.ELU(), nn.Linear(18, 2))
    updates = InBackward(model)
    for step in range(120):
        if step == 77:
            del updates.optimizers[model[2].weight]
        x = torch.randn(28, 9)
        nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long()).backward()


main()
