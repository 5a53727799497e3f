"""Advantage actor-critic on a pole-balancing task written in numpy."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class Pole:
    """The classic cart and pole, for a batch of carts at once."""

    def __init__(self, carts):
        self.carts = carts
        self.state = np.random.uniform(-0.05, 0.05, (carts, 4))
        self.age = np.zeros(carts)

    def step(self, action):
        x, v, a, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * w**2 * np.sin(a)) / 1.1
        turn = (9.8 * np.sin(a) - np.cos(a) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(a) ** 2 / 1.1))
        speed = push - 0.05 * turn * np.cos(a) / 1.1
        dt = 0.02
        self.state = np.stack([x + dt * v, v + dt * speed, a + dt * w, w + dt * turn], axis=1)
        self.age += 1
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        ended = self.age[fallen].tolist()
        self.state[fallen] = np.random.uniform(-0.05, 0.05, (fallen.sum(), 4))
        self.age[fallen] = 0
        return np.where(fallen, -1.0, 0.1), fallen, ended


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh())
        self.actor = nn.Linear(hidden, 2)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, state):
        h = self.body(state)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


def observe(env):
    return torch.tensor(env.state * np.array([1.0, 1.0, 10.0, 1.0]), dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=200)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    env = Pole(carts=16)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    lengths = []
    for update in range(args.updates):
        log_probs, values, rewards, masks, entropies = [], [], [], [], []
        for _ in range(8):
            policy, value = model(observe(env))
            action = policy.sample()
            reward, fallen, ended = env.step(action.numpy())
            lengths += ended
            log_probs.append(policy.log_prob(action))
            entropies.append(policy.entropy())
            values.append(value)
            rewards.append(torch.tensor(reward, dtype=torch.float32))
            masks.append(torch.tensor(~fallen, dtype=torch.float32))
        with torch.no_grad():
            running = model(observe(env))[1]
        returns = []
        for reward, mask in zip(reversed(rewards), reversed(masks), strict=True):
            running = reward + 0.97 * running * mask
            returns.insert(0, running)
        returns, values = torch.stack(returns), torch.stack(values)
        advantage = (returns - values).detach()
        policy_loss = -(torch.stack(log_probs) * advantage).mean()
        value_loss = F.mse_loss(values, returns)
        loss = policy_loss + 0.5 * value_loss - 0.01 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 25 == 0 and lengths:
            print(f"update {update} loss {loss.item():+.4f} length {np.mean(lengths[-30:]):.1f}")


if __name__ == "__main__":
    main()
