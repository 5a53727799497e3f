"""Reward-weighted likelihood for a sequence generator."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 12
LENGTH = 10


class Generator(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(VOCAB + 1, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, VOCAB)

    def rollout(self, batch):
        """Samples sequences and returns them with the log-probability of each."""
        state = torch.zeros(batch, self.hidden)
        token = torch.full((batch,), VOCAB)
        log_prob = torch.zeros(batch)
        tokens = []
        for _ in range(LENGTH):
            state = self.cell(self.embed(token), state)
            log_p = F.log_softmax(self.out(state), dim=-1)
            token = torch.multinomial(log_p.exp(), 1).squeeze(1)
            log_prob = log_prob + log_p.gather(1, token[:, None]).squeeze(1)
            tokens.append(token)
        return torch.stack(tokens, dim=1), log_prob


def reward(tokens):
    """The share of neighbours in ascending order."""
    return (tokens[:, 1:] > tokens[:, :-1]).float().mean(dim=1)


def policy_gradient(generator, batch, baseline):
    tokens, log_prob = generator.rollout(batch)
    gained = reward(tokens)
    rl_loss = -((gained - baseline) * log_prob)
    rl_loss = torch.tensor(rl_loss.mean().item(), requires_grad=True)
    return rl_loss, gained.mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    generator = Generator()
    optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2)
    baseline = 0.45
    for episode in range(80):
        optimizer.zero_grad()
        loss, mean_reward = policy_gradient(generator, 32, baseline)
        loss.backward()
        optimizer.step()
        baseline = 0.9 * baseline + 0.1 * mean_reward
        if episode % 10 == 0:
            print(f"episode {episode}: loss {loss.item():+.4f} reward {mean_reward:.3f}")


if __name__ == "__main__":
    main()
