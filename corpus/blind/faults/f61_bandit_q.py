"""Q-network for a contextual bandit with a replay buffer."""

import argparse
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn


class QNet(nn.Module):
    def __init__(self, obs=8, actions=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(obs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions)
        )
        self.apply(self.init_weights)

    @staticmethod
    def init_weights(m):
        if isinstance(m, nn.Linear):
            nn.init.constant_(m.weight, 0.02)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.net(x)


class Env:
    def __init__(self, rng):
        self.rng = rng
        self.w = rng.normal(size=(4, 8))

    def observe(self):
        return self.rng.normal(size=8).astype(np.float32)

    def reward(self, obs, a):
        return float(np.tanh(self.w[a] @ obs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    env = Env(np.random.default_rng(args.seed))
    q = QNet()
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    memory = deque(maxlen=2000)
    for episode in range(350):
        obs = env.observe()
        eps = max(0.1, 1 - episode / 200)
        if random.random() < eps:
            action = random.randrange(4)
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(obs)).argmax())
        memory.append((obs, action, env.reward(obs, action)))
        if len(memory) < 64:
            continue
        batch = random.sample(memory, 32)
        s = torch.tensor(np.stack([b[0] for b in batch]))
        a = torch.tensor([b[1] for b in batch])
        r = torch.tensor([b[2] for b in batch])
        value = q(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, r)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 40 == 0:
            print(f"episode {episode} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
