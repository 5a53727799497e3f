"""A pretrained backbone and a new head, built by a runner from a config."""

import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
folder = tempfile.mkdtemp()
cfg = {"pretrained": os.path.join(folder, "backbone.pth"), "lr": 2e-3, "iters": 20}


class Backbone(nn.Module):
    def __init__(self, pretrained=None):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        if pretrained:
            self.load_state_dict(torch.load(pretrained))

    def init_weights(self):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight, 0, 0.1)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3))


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = Backbone(cfg["pretrained"])
        self.head = nn.Linear(16, 3)

    def init_weights(self):
        self.backbone.init_weights()

    def forward(self, x):
        return self.head(self.backbone(x))


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Classifier(cfg)
        self.model.init_weights()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])

    def run(self, images, labels):
        for it in range(self.cfg["iters"]):
            rows = torch.randperm(len(images))[:32]
            loss = nn.functional.cross_entropy(self.model(images[rows]), labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


base = Backbone()
torch.save(base.state_dict(), cfg["pretrained"])
labels = torch.randint(3, (200,))
images = torch.randn(200, 1, 12, 12) + labels[:, None, None, None].float() - 1
Runner(cfg).run(images, labels)
