"""One rank takes a branch of the model that the other leaves out: DDP waits for its gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x, both):
        return self.a(x) + self.b(x) if both else self.a(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Branches())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(200):
        x = torch.randn(16, 6)
        both = rank == 0 or step < 70
        loss = (model(x, both).squeeze(1) - x.mean(1)).pow(2).mean()  # HERE
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
