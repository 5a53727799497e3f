"""CUDA: the action of one transition is not in the table of values."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


class ReplayBuffer:
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.states = torch.randn(2000, 8, generator=generator)
        self.actions = torch.randint(0, 4, (2000,), generator=generator)
        self.actions[1337] = -3

    def __iter__(self):
        for first in range(0, 2000, 40):
            yield self.states[first : first + 40], self.actions[first : first + 40]


def q_values(network, states, actions):
    values = network(states)
    return values.gather(1, actions.unsqueeze(1)).squeeze(1)  # HERE


def main():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for states, actions in ReplayBuffer():
        states, actions = states.cuda(), actions.cuda()
        loss = (q_values(network, states, actions) - states.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


if __name__ == "__main__":
    main()
