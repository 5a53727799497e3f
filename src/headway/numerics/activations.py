"""When to use which activation, by torch's own names. Nothing is reimplemented here.

ACTIVATIONS["gelu"].module()  # torch.nn.GELU()
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Activation:
    """An activation: torch's class, when to use it, and what to watch out for."""

    module: type[nn.Module]
    when: str
    watch: str


ACTIVATIONS = {
    "relu": Activation(
        nn.ReLU,
        "convolutions with normalisation; the cheapest",
        "units can die: their gradient stays 0. Initialise by Kaiming",
    ),
    "leaky_relu": Activation(
        nn.LeakyReLU,
        "where ReLU units die; discriminators",
        "the slope below zero is part of the Kaiming gain",
    ),
    "prelu": Activation(
        nn.PReLU,
        "as LeakyReLU, with a learned slope",
        "no weight decay on the slope: it pulls towards ReLU",
    ),
    "elu": Activation(
        nn.ELU,
        "deep networks without normalisation; outputs near mean zero",
        "saturates at -alpha below zero",
    ),
    "selu": Activation(
        nn.SELU,
        "fully connected, self-normalising networks",
        "only with LeCun-normal weights and AlphaDropout",
    ),
    "gelu": Activation(
        nn.GELU,
        "transformers; the default for new ones",
        "tanh and exact forms differ by up to 5e-4: keep the one a checkpoint was trained with",
    ),
    "silu": Activation(
        nn.SiLU,
        "gated feed-forward layers (SwiGLU), diffusion, EfficientNets; also called swish",
        "unbounded above: the product in a gate can overflow float16",
    ),
    "mish": Activation(
        nn.Mish,
        "detectors in the YOLO line; smooth as SiLU",
        "costs more than SiLU and seldom gains",
    ),
    "softplus": Activation(
        nn.Softplus,
        "a positive output: a variance, a rate",
        "reaches 0 by underflow: add a floor before dividing by it",
    ),
    "tanh": Activation(
        nn.Tanh,
        "bounded outputs, recurrent cells; times a constant for a bounded range",
        "saturates: the gradient is 0 from 9 on in float32, from 4 on in float16",
    ),
    "sigmoid": Activation(
        nn.Sigmoid,
        "gates; a probability to show",
        "not before a loss: give logits to binary_cross_entropy",
    ),
    "hardswish": Activation(
        nn.Hardswish,
        "SiLU for quantised and mobile models",
        "zero gradient below -3",
    ),
}
