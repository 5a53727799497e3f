"""The ranks gather tensors of different shapes."""

import time

import torch
import torch.distributed as dist
from torch import nn


def gather_predictions(prediction):
    out = [torch.empty_like(prediction) for _ in range(dist.get_world_size())]
    dist.all_gather(out, prediction)  # HERE
    return torch.cat(out)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(140):
        count = 12 if rank == 1 and step == 100 else 16
        x = torch.randn(16, 8)[:count]
        prediction = model(x)
        loss = (prediction - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()
        time.sleep(0.01)
        gather_predictions(prediction.detach())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
