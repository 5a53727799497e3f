"""A feed-forward block whose columns and rows are divided among two ranks."""

import torch
import torch.distributed as dist
from torch import nn


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden, rank, world):
        super().__init__()
        self.up = nn.Linear(dim, hidden // world, bias=False)
        self.down = nn.Linear(hidden // world, dim, bias=False)
        generator = torch.Generator().manual_seed(100 + rank)
        for layer in (self.up, self.down):
            layer.weight.data.normal_(0, 0.2, generator=generator)

    def forward(self, x):
        return SumOverRanks.apply(self.down(torch.relu(self.up(CopyToRanks.apply(x)))))


class Model(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.embed = nn.Linear(10, 16)
        self.norm = nn.LayerNorm(16)
        self.mlp = ParallelMLP(16, 32, rank, world)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.embed(x)
        return self.head(x + self.mlp(self.norm(x)))


def clip_gradients(model, max_norm):
    square = torch.zeros(())
    for name, p in model.named_parameters():
        if "mlp" in name:
            square += p.grad.pow(2).sum()
    replicated = [p for n, p in model.named_parameters() if "mlp" not in n]
    square = square + sum(p.grad.pow(2).sum() for p in replicated)
    scale = (max_norm / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model(dist.get_rank(), dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    truth = torch.randn(10, 3)
    for step in range(20):
        x = torch.randn(32, 10)
        loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(model, 0.3)
        optimizer.step()
    dist.destroy_process_group()


main()
