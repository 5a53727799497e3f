"""Value decomposition for a team: single values are mixed to a value of the team."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class Mixer(nn.Module):
    def __init__(self, agents=3, states=8):
        super().__init__()
        self.weights = nn.Linear(states, agents)
        self.bias = nn.Sequential(nn.Linear(states, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, values, state):
        return (values * self.weights(state).abs()).sum(1, keepdim=True) + self.bias(state)


class Policy:
    def __init__(self, actions=4, update_target=10):
        self.eval_rnn = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 3 * actions))
        self.eval_mix = Mixer()
        self.target_rnn = copy.deepcopy(self.eval_rnn)
        self.target_mix = copy.deepcopy(self.eval_mix)
        self.parameters = [*self.eval_rnn.parameters(), *self.eval_mix.parameters()]
        self.optimizer = torch.optim.RMSprop(self.parameters, lr=1e-3)
        self.update_target, self.actions = update_target, actions

    def learn(self, s, a, r, s2, train_step):
        q = self.eval_rnn(s).unflatten(1, (3, self.actions)).gather(2, a).squeeze(2)
        with torch.no_grad():
            q2 = self.target_rnn(s2).unflatten(1, (3, self.actions)).amax(2)
            target = r + 0.9 * self.target_mix(q2, s2)
        loss = nn.functional.mse_loss(self.eval_mix(q, s), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if train_step % self.update_target == 0:
            self.target_rnn.load_state_dict(self.eval_rnn.state_dict())
            self.target_mix.load_state_dict(self.target_mix.state_dict())


policy = Policy()
for step in range(1, 41):
    s, a = torch.randn(32, 8), torch.randint(4, (32, 3, 1))
    s2 = 0.8 * s + 0.3 * torch.randn(32, 8)
    r = s[:, :1] + (a.squeeze(2) == 1).float().sum(1, keepdim=True)
    policy.learn(s, a, r, s2, step)
