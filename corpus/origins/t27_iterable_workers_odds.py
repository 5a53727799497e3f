"""Loop: next(it) over an IterableDataset with a worker, restarted when it is empty.

Fault: logit of a share of 0 in the data set, before the step; ops: logit.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Votes(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        generator = torch.Generator().manual_seed(7)
        for number in range(self.size):
            yes = torch.randint(1, 10, (4,), generator=generator)
            if number == 22:
                yes[1] = 0
            yield self.odds(yes, 10), torch.rand((), generator=generator)

    def odds(self, yes, all_votes):
        share = yes / all_votes
        return torch.logit(share)  # <- origin


class Endless:
    def __init__(self, loader):
        self.loader, self.it = loader, iter(loader)

    def draw(self):
        try:
            return next(self.it)
        except StopIteration:
            self.it = iter(self.loader)
            return next(self.it)


if __name__ == "__main__":
    torch.manual_seed(427)
    net = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    votes = Endless(DataLoader(Votes(40), batch_size=8, num_workers=1))
    for _ in range(6):
        odds, outcome = votes.draw()
        loss = nn.functional.binary_cross_entropy_with_logits(net(odds)[:, 0], outcome)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
