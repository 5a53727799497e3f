"""A conditional GAN whose discriminator also names the class."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)
nz, classes, size = 10, 4, 16


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Embedding(classes, nz)
        self.main = nn.Sequential(nn.Linear(nz, 48), nn.ReLU(True), nn.Linear(48, size))

    def forward(self, noise, label):
        return torch.tanh(self.main(noise * self.label(label)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(size, 64), nn.LeakyReLU(0.2))
        self.fc_dis = nn.Linear(64, 1)
        self.fc_aux = nn.Linear(64, classes)
        self.softmax = nn.Softmax(dim=1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        h = self.main(x)
        return self.sigmoid(self.fc_dis(h)).view(-1), self.softmax(self.fc_aux(h))


netG, netD = Generator(), Discriminator()
dis_criterion, aux_criterion = nn.BCELoss(), nn.NLLLoss()
optimizerD = optim.Adam(netD.parameters(), lr=5e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=5e-4, betas=(0.5, 0.999))
shapes = torch.tanh(torch.randn(classes, size))

for i in range(30):
    label = torch.randint(classes, (32,))
    real = (shapes[label] + 0.2 * torch.randn(32, size)).clamp(-1, 1)
    netD.zero_grad()
    dis_output, aux_output = netD(real)
    errD_real = dis_criterion(dis_output, torch.ones(32)) + aux_criterion(aux_output, label)
    errD_real.backward()
    fake_label = torch.randint(classes, (32,))
    fake = netG(torch.randn(32, nz), fake_label)
    dis_fake, aux_fake = netD(fake.detach())
    errD_fake = dis_criterion(dis_fake, torch.zeros(32)) + aux_criterion(aux_fake, fake_label)
    errD_fake.backward()
    optimizerD.step()

    netG.zero_grad()
    dis_fake, aux_fake = netD(fake)
    errG = dis_criterion(dis_fake, torch.ones(32)) + aux_criterion(aux_fake, fake_label)
    errG.backward()
    optimizerG.step()
