"""Language-independent features: an encoder that is trained to fool a language classifier."""

import torch
from torch import nn

torch.manual_seed(0)
language = torch.randint(2, (256,))
topic = torch.randint(4, (256,))
texts = torch.randn(256, 20)
texts[:, :4] += 2 * nn.functional.one_hot(topic, 4)
texts[:, 4] += 2.0 * language

encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
tagger = nn.Linear(32, 4)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))

    def forward(self, features, labels=None):
        logits = self.net(features)
        if labels is None:
            return logits.detach()
        return nn.functional.cross_entropy(logits, labels)


discriminator = Discriminator()
opt_task = torch.optim.Adam([*encoder.parameters(), *tagger.parameters()], lr=2e-3)
opt_disc = torch.optim.Adam(discriminator.parameters(), lr=1e-3)

for step in range(24):
    rows = torch.randint(256, (32,))
    features = encoder(texts[rows])
    disc_loss = discriminator(features.detach(), language[rows])
    opt_disc.zero_grad()
    disc_loss.backward()
    opt_disc.step()

    task_loss = nn.functional.cross_entropy(tagger(features), topic[rows])
    log_p = torch.log_softmax(discriminator(features), dim=1)
    confusion = -log_p.mean()
    loss = task_loss + 0.3 * confusion
    opt_task.zero_grad()
    loss.backward()
    opt_task.step()
