"""A scoring server runs as a child; it is killed with SIGKILL and started again with new
weights."""

import multiprocessing
import time

import torch
from torch import nn


def serve(weights, questions, answers):
    model = nn.Linear(6, 1)
    model.load_state_dict(weights)
    while True:
        answers.put(model(questions.get()).mean().item())


class Server:
    def __init__(self, model):
        context = multiprocessing.get_context("fork")
        self.questions, self.answers = context.Queue(), context.Queue()
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        arguments = (weights, self.questions, self.answers)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()

    def stop(self):
        self.process.kill()
        self.process.join()
        print("server ended with", self.process.exitcode)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        server = Server(model)
        for _ in range(40):
            x = torch.randn(16, 6)
            loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.005)
        server.stop()
