"""Speech pre-training on two ranks: predict codes that a fixed random quantizer gives."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel as DDP


class RandomProjectionQuantizer(nn.Module):
    """A projection and a codebook that are drawn once and never trained."""

    def __init__(self, features=10, dim=6, codes=12):
        super().__init__()
        self.projection = nn.Parameter(torch.randn(features, dim), requires_grad=False)
        self.codebook = nn.Parameter(torch.randn(codes, dim), requires_grad=False)

    @torch.no_grad()
    def forward(self, x):
        projected = normalize(x @ self.projection, dim=-1)
        return torch.cdist(projected, normalize(self.codebook, dim=-1)).argmin(-1)


class Encoder(nn.Module):
    def __init__(self, features=10, codes=12):
        super().__init__()
        self.rnn = nn.GRU(features, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, codes)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Brain:
    def __init__(self, seed=1234):
        self.rank = dist.get_rank()
        torch.manual_seed(seed + self.rank)
        self.modules = {"quantizer": RandomProjectionQuantizer(), "encoder": Encoder()}
        for name, module in self.modules.items():
            if any(p.requires_grad for p in module.parameters()):
                self.modules[name] = DDP(module)
        self.optimizer = torch.optim.Adam(self.modules["encoder"].parameters(), lr=3e-3)

    def fit_batch(self, features, mask):
        targets = self.modules["quantizer"](features)
        heard = features.masked_fill(mask.unsqueeze(-1), 0.0)
        logits = self.modules["encoder"](heard)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main():
    dist.init_process_group("gloo")
    brain = Brain()
    generator = torch.Generator().manual_seed(brain.rank)
    for step in range(25):
        steps = torch.randn(16, 12, 10, generator=generator)
        features = 0.5 * steps + 0.5 * steps.cumsum(1) / 3
        mask = torch.rand(16, 12, generator=generator) < 0.2
        brain.fit_batch(features, mask)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
