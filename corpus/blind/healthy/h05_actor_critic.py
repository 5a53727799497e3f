"""Actor-critic on a small corridor environment."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


class Corridor:
    """Start in the middle of nine cells; the goal is at the right end."""

    def reset(self):
        self.pos, self.t = 4, 0
        return self.obs()

    def obs(self):
        return F.one_hot(torch.tensor(self.pos), 9).float()

    def step(self, a):
        self.pos += 1 if a == 1 else -1
        self.t += 1
        done = self.pos in (0, 8) or self.t >= 30
        reward = 1.0 if self.pos == 8 else (-1.0 if self.pos == 0 else -0.01)
        return self.obs(), reward, done


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(9, 32)
        self.pi = nn.Linear(32, 2)
        self.v = nn.Linear(32, 1)

    def forward(self, s):
        h = torch.relu(self.body(s))
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    env, model = Corridor(), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    running = 0.0
    for episode in range(150):
        s, done = env.reset(), False
        logps, values, rewards = [], [], []
        while not done:
            dist, v = model(s)
            a = dist.sample()
            s, r, done = env.step(a.item())
            logps.append(dist.log_prob(a))
            values.append(v)
            rewards.append(r)
        returns, g = [], 0.0
        for r in reversed(rewards):
            g = r + 0.97 * g
            returns.insert(0, g)
        returns, values = torch.tensor(returns), torch.stack(values)
        adv = returns - values.detach()
        policy_loss = -(torch.stack(logps) * adv).sum()
        value_loss = F.smooth_l1_loss(values, returns, reduction="sum")
        loss = policy_loss + value_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.95 * running + 0.05 * sum(rewards)
        if episode % 15 == 0:
            print(f"episode {episode} return {sum(rewards):.2f} running {running:.2f}")


if __name__ == "__main__":
    main()
