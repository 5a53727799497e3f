"""A private GAN for tables: teachers see parts of the data, a student learns from them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Discriminator(nn.Sequential):
    def __init__(self, columns=8, dim=32):
        super().__init__(nn.Linear(columns, dim), nn.LeakyReLU(0.2), nn.Linear(dim, 1))


class PrivateTableGAN:
    def __init__(self, columns=8, teachers=3, noise=6):
        self.noise = noise
        self.generator = nn.Sequential(nn.Linear(noise, 32), nn.ReLU(), nn.Linear(32, columns))
        self.student = Discriminator()
        self.teachers = [Discriminator() for _ in range(teachers)]
        self.optimizer_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3)
        self.optimizer_s = torch.optim.Adam(self.student.parameters(), lr=1e-3)
        self.optimizer_t = [torch.optim.Adam(t.parameters(), lr=1e-3) for t in self.teachers]
        self.criterion = nn.BCEWithLogitsLoss()

    def sample(self, count):
        return self.generator(torch.randn(count, self.noise))

    def train(self, parts, iterations=20):
        readers = [self.endless(part) for part in parts]
        for _ in range(iterations):
            for teacher, optimizer, reader in zip(self.teachers, self.optimizer_t, readers):
                real, fake = next(reader), self.sample(32).detach()
                rows, truth = torch.cat([real, fake]), torch.ones(64, 1)
                truth[32:] = 0.0
                optimizer.zero_grad()
                self.criterion(teacher(rows), truth).backward()
                optimizer.step()

            fake = self.sample(32).detach()
            with torch.no_grad():
                votes = sum((teacher(fake) > 0).float() for teacher in self.teachers)
            votes = votes + 0.3 * torch.randn_like(votes)
            labels = (votes > len(self.teachers) / 2).float()
            student_loss = self.criterion(self.student(fake), labels)
            student_loss.backward()
            self.optimizer_s.step()

            self.optimizer_g.zero_grad()
            frozen = [p.requires_grad_(False) for p in self.student.parameters()]
            loss = self.criterion(self.student(self.sample(32)), torch.ones(32, 1))
            loss.backward()
            self.optimizer_g.step()
            for p in frozen:
                p.requires_grad_(True)

    @staticmethod
    def endless(part):
        while True:
            for (rows,) in DataLoader(TensorDataset(part), batch_size=32, shuffle=True):
                yield rows


if __name__ == "__main__":
    torch.manual_seed(0)
    mixing = torch.randn(8, 8) / 3
    table = torch.randn(3 * 320, 8) @ mixing + 0.5
    PrivateTableGAN().train(table.chunk(3))
