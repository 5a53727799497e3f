"""Embeddings and output layers that hold the same numbers in different tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer

TOPIC = "tied-weights"


class TiedWeights(Observer):
    """Compares them once, at the first backward pass: before any update tells them apart."""

    def start(self) -> None:
        self._looked: set[int] = set()

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        new = [model for model in self.scene.models if id(model) not in self._looked]
        if not new:
            return
        self._looked.update(id(model) for model in new)
        pairs = [pair for model in new for pair in self._pairs(model)]
        for pair in pairs:
            self.evidence.tell(TOPIC, pair)
        if not pairs:
            self.evidence.tell(TOPIC, {"copies": False})

    def _pairs(self, model: nn.Module) -> Iterator[dict[str, Any]]:
        embeddings = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
        shapes = {weight.shape for weight in embeddings}
        others = [p for p in _outputs(model) if p.shape in shapes]
        for embedding in embeddings:
            for other in others:
                if (
                    other is not embedding
                    and other.shape == embedding.shape
                    and _both(embedding, other)
                ):
                    equal = _copies(embedding, other)
                    asked = _asked_for(model, embedding, other)
                    if equal or asked:
                        yield {
                            "copies": equal,
                            "asked": asked,
                            "embedding": self.scene.name_of(embedding) or "an embedding",
                            "output": self.scene.name_of(other) or "an output layer",
                            "shape": list(embedding.shape),
                            "place": self._copied_at(embedding, other),
                        }

    def _copied_at(self, *pair: Tensor) -> Any:
        """The line that made the younger of the two, or filled it."""
        origins = self.scene.origins
        return max((origins.last_change(item) for item in pair), key=lambda known: known[1])[0]


def _outputs(model: nn.Module) -> list[Tensor]:
    """Weights of linear layers, and matrices that stand by themselves."""
    found: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            continue
        known = isinstance(module, nn.Linear)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 2 and (known or name not in ("weight_ih_l0", "weight_hh_l0")):
                found.append(parameter)
    return list({id(p): p for p in found}.values())


def _both(embedding: Tensor, other: Tensor) -> bool:
    # Two parameters over one memory move together, and a frozen one is a copy on purpose.
    trained = embedding.requires_grad and other.requires_grad
    return trained and embedding.data_ptr() != other.data_ptr()


@torch.no_grad()
def _copies(embedding: Tensor, other: Tensor) -> bool:
    if embedding.device != other.device or embedding.dtype != other.dtype:
        return False
    if not torch.equal(embedding[:1], other[:1]) and not torch.equal(embedding[-1:], other[-1:]):
        return False
    rows = embedding if embedding.shape[0] < 3 else embedding[1:]  # a padding row may be 0
    theirs = other if other.shape[0] < 3 else other[1:]
    return torch.equal(rows, theirs) and bool((rows != rows.flatten()[0]).any())


def _asked_for(model: nn.Module, embedding: Tensor, other: Tensor) -> bool:
    """Whether a configuration asks for these two to be one (transformers' models)."""
    for module in model.modules():
        config = vars(module).get("config")
        if getattr(config, "tie_word_embeddings", False) is not True:
            continue
        get_in = getattr(module, "get_input_embeddings", None)
        get_out = getattr(module, "get_output_embeddings", None)
        if not callable(get_in) or not callable(get_out):
            continue
        ends = (get_in(), get_out())
        weights = [getattr(end, "weight", None) for end in ends]
        if weights[0] is embedding and weights[1] is other:
            return True
    return False
