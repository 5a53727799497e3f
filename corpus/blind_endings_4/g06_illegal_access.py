"""CUDA: a sparse matrix whose column index was never checked: illegal memory access."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


class GraphLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, adjacency, x):
        return torch.relu(adjacency @ self.linear(x))  # HERE


def adjacency(nodes, broken):
    rows = torch.arange(0, 4 * nodes + 1, 4)
    columns = torch.randint(0, nodes, (4 * nodes,))
    if broken:
        columns[17] = 2**40
    return torch.sparse_csr_tensor(rows, columns, torch.ones(4 * nodes), (nodes, nodes)).cuda()


def main():
    torch.manual_seed(0)
    layer = GraphLayer().cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for step in range(60):
        graph = adjacency(100, broken=step == 33)
        x = torch.randn(100, 16).cuda()
        loss = (layer(graph, x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


if __name__ == "__main__":
    main()
