"""A classifier and a domain discriminator in one wrapped model, on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.classifier = nn.Linear(32, 4)
        self.domain = nn.Linear(32, 2)

    def forward(self, source, target):
        fs, ft = self.backbone(source), self.backbone(target)
        return self.classifier(fs), self.domain(torch.cat([fs, ft]).detach())


class AdaptationTrainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.parts = self.model.module
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self, source, labels, target):
        fs, ft = self.parts.backbone(source), self.parts.backbone(target)
        logits, domain = self.parts.classifier(fs), self.parts.domain(torch.cat([fs, ft]).detach())
        which = torch.cat([torch.zeros(len(fs)), torch.ones(len(ft))]).long()
        loss = nn.functional.cross_entropy(logits, labels)
        loss = loss + nn.functional.cross_entropy(domain, which)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
trainer = AdaptationTrainer(Adapter())
centres = torch.randn(4, 16)
torch.manual_seed(10 + dist.get_rank())
for it in range(20):
    labels = torch.randint(4, (24,))
    source = centres[labels] + 0.5 * torch.randn(24, 16)
    target = centres[torch.randint(4, (24,))] + 0.5 * torch.randn(24, 16) + 0.7
    trainer.step(source, labels, target)
dist.destroy_process_group()
