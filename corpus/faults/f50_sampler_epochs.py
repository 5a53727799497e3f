"""Traffic-flow regression written so that it also runs on several ranks."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class FlowDataset(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        hour = torch.rand(n, generator=g) * 24
        weekday = torch.randint(0, 7, (n,), generator=g)
        rain = torch.rand(n, generator=g)
        rush = torch.exp(-((hour - 8) ** 2) / 4) + torch.exp(-((hour - 17.5) ** 2) / 5)
        flow = rush * (weekday < 5) + 0.3 * torch.sin(hour / 24 * 6.28) - 0.4 * rain
        self.y = flow + 0.05 * torch.randn(n, generator=g)
        clock = hour / 24 * 6.2832
        self.x = torch.cat(
            [
                torch.stack([clock.sin(), clock.cos(), (2 * clock).sin(), rain], 1),
                nn.functional.one_hot(weekday, 7).float(),
            ],
            dim=1,
        )

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    rank, world = int(os.getenv("RANK", "0")), int(os.getenv("WORLD_SIZE", "1"))

    dataset = FlowDataset(640, args.seed)
    sampler = DistributedSampler(dataset, world, rank, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(11, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    model.append(nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    step = 0
    for epoch in range(args.epochs):
        for batch in loader:
            loss = (model(batch["x"]).squeeze(-1) - batch["y"]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch:2d} step {step:4d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
