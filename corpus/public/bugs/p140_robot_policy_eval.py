"""Imitation with a rollout for evaluation every few steps."""

import torch
from torch import nn

torch.manual_seed(0)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(9, 48),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(48, 48),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(48, 2),
        )

    def select_action(self, observation):
        return self.net(observation)

    def forward(self, batch):
        return nn.functional.l1_loss(self.net(batch["observation"]), batch["action"])


def eval_policy(policy, n_episodes=4):
    policy.eval()
    total = 0.0
    with torch.no_grad():
        for _ in range(n_episodes):
            observation = torch.randn(1, 9)
            for _ in range(5):
                action = policy.select_action(observation)
                observation = 0.9 * observation + 0.1 * action.sum()
                total -= float(observation.norm())
    return total / n_episodes


def update_policy(policy, batch, optimizer):
    loss = policy(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


expert = torch.randn(9, 2)
policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
policy.train()
for step in range(1, 41):
    observation = torch.randn(32, 9)
    batch = {"observation": observation, "action": torch.tanh(observation @ expert)}
    update_policy(policy, batch, optimizer)
    if step % 10 == 0:
        print(step, eval_policy(policy))
