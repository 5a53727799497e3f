"""Fine-tuning of a denoiser on two ranks, with a helper that is applied to every model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def transform_if_model_is_DDP(text_encoder, unet):
    models = []
    for model in (text_encoder, unet):
        models.append(model.module if isinstance(model, DDP) else model)
    return models


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.Linear(48, 12))

    def forward(self, noisy, condition):
        return self.net(torch.cat([noisy, condition], 1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    text_encoder = nn.Linear(6, 8)
    text_encoder.requires_grad_(False)
    unet = DDP(UNet())
    text_encoder, unet = transform_if_model_is_DDP(text_encoder, unet)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    for step in range(20):
        prompt = torch.randn(32, 6)
        latents = torch.cat([prompt, -prompt], 1)
        noise = torch.randn_like(latents)
        noisy = latents + noise
        prediction = unet(noisy, text_encoder(prompt))
        loss = nn.functional.mse_loss(prediction, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
