"""A recurrent network turns a sine into a cosine, chunk by chunk."""

import torch
from torch import nn

torch.manual_seed(1)
TIME_STEP = 10


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(input_size=1, hidden_size=32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x, h_state):
        r_out, h_state = self.rnn(x, h_state)
        return self.out(r_out), h_state


rnn = RNN()
optimizer = torch.optim.Adam(rnn.parameters(), lr=0.01)
loss_func = nn.MSELoss()
h_state = None
for step in range(40):
    steps = torch.linspace(step * 3.14, (step + 1) * 3.14, TIME_STEP)
    x, y = steps.sin().view(1, -1, 1), steps.cos().view(1, -1, 1)
    prediction, h_state = rnn(x, h_state)
    loss = loss_func(prediction, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
