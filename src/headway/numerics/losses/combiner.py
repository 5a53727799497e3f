"""Several losses under one roof: names, weights, and who is not finite."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor

OnNonFinite = Literal["raise", "leave out", "keep"]


class NonFiniteLoss(ArithmeticError):
    """A component of the loss is NaN or infinite; `names` says which."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


class LossCombiner:
    """The weighted sum of named losses.

        combine = LossCombiner(box=7.5, dfl=1.5)  # others weigh 1
        total = combine(box=l1, dfl=l2)
        guard.backward(total, **combine.last)  # or total.backward()

    What happens to a component that is NaN or infinite is yours to choose:

    - "raise" (the default): `NonFiniteLoss`, with the names.
    - "leave out": the total is that of the others, `left_out` counts by name, and the first time of
      each name is a warning. Its part of the graph is not visited. If nothing is left it raises.
      With several ranks one may leave out what another keeps, and DistributedDataParallel then
      waits for gradients that never come: take "keep", and the guard holds the step back on all.
    - "keep": it goes into the total; the guard holds the step back and names the component. Nothing
      waits for the device. The two others read one small tensor per call.

    `last` holds the values of the last call, unweighted and detached, left-out ones included.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        on_nonfinite: OnNonFinite = "raise",
        **more: float,
    ) -> None:
        if on_nonfinite not in ("raise", "leave out", "keep"):
            raise ValueError(
                f"on_nonfinite is {on_nonfinite!r}: it is one of 'raise', 'leave out' and 'keep'"
            )
        self.weights = {**(weights or {}), **more}
        self.on_nonfinite = on_nonfinite
        self.last: dict[str, Tensor] = {}
        self.left_out: Counter[str] = Counter()

    def __call__(self, **components: Tensor) -> Tensor:
        """The total of the components, which are one number each."""
        if not components:
            raise ValueError("no components: nothing to combine")
        for name, value in components.items():
            if value.numel() != 1:
                raise ValueError(
                    f"component {name!r} has shape {tuple(value.shape)}: give its mean or sum"
                )
        self.last = {name: value.detach().reshape(()) for name, value in components.items()}
        used = self._usable(components)
        return reduce(add, (self._weighed(name, value) for name, value in used.items()))

    def gradient_shares(
        self, at: Tensor | Iterable[Tensor], **components: Tensor
    ) -> dict[str, float]:
        """How much of the gradient at some tensors each weighted component makes: 0 to 1.

        `at` are parameters, or an activation all components come from: the output of the trunk is
        cheap and usually enough. Shares are of the sum of the components' gradient norms; they are
        all 0 where no gradient arrives. The graph is kept: call it before `backward`. Costs a
        backward pass to `at` for each component, so ask now and then.
        """
        tensors = [at] if isinstance(at, Tensor) else list(at)
        norms = []
        for name, value in components.items():
            found: tuple[Tensor | None, ...] = (None,)
            if value.requires_grad:
                found = torch.autograd.grad(
                    self._weighed(name, value), tensors, retain_graph=True, allow_unused=True
                )
            parts = [torch.linalg.vector_norm(item.float()) for item in found if item is not None]
            norm = torch.stack(parts).norm() if parts else value.new_zeros((), dtype=torch.float32)
            norms.append(norm)
        shares = torch.stack(norms)
        total = shares.sum()
        return dict(
            zip(components, (shares / torch.where(total == 0, 1.0, total)).tolist(), strict=True)
        )

    def _weighed(self, name: str, value: Tensor) -> Tensor:
        weight = self.weights.get(name, 1.0)
        value = value.reshape(())
        return value if weight == 1.0 else value * weight

    def _usable(self, components: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.on_nonfinite == "keep":
            return components
        flags = torch.stack([value.isfinite() for value in self.last.values()]).tolist()
        bad = [name for name, fine in zip(components, flags, strict=True) if not fine]
        if not bad:
            return components
        told = ", ".join(f"{name} = {self.last[name].item()}" for name in bad)
        if self.on_nonfinite == "raise":
            raise NonFiniteLoss(f"not finite: {told}", bad)
        if len(bad) == len(components):
            raise NonFiniteLoss(f"not finite, and nothing is left to train on: {told}", bad)
        new = [name for name in bad if not self.left_out[name]]
        self.left_out.update(bad)
        if new:
            warnings.warn(
                f"left out of the loss, not being finite: {told}; from now on left_out counts",
                stacklevel=3,
            )
        return {name: value for name, value in components.items() if name not in bad}
