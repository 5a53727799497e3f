"""A learner that receives batches of experience and updates a policy."""

import torch
from torch import nn

torch.manual_seed(0)


class Learner:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 4))
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.05)

    def train_step(self, batch):
        logp = torch.log_softmax(self.policy(batch["state"]), -1)
        chosen = logp.gather(1, batch["action"][:, None]).squeeze(1)
        loss = -(chosen * batch["advantage"]).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


learner = Learner()
worth = torch.randn(9, 4)
for step in range(50):
    state = torch.randn(64, 9)
    action = torch.randint(0, 4, (64,))
    reward = (state @ worth).gather(1, action[:, None]).squeeze(1)
    advantage = (reward - reward.mean()) / reward.std()
    learner.train_step({"state": state, "action": action, "advantage": advantage})
