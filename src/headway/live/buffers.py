"""Putting back what a bad forward did to the model's buffers.

BatchNorm updates its running statistics in the forward pass, before anybody knows that the batch is
bad. A copy of every buffer is kept. Large ones are copied again only where torch's version counter
says that they changed, so masks and position tables cost one copy in all. Small floating-point
buffers of modules in training mode are always copied: BatchNorm's kernel changes its statistics
behind the version counter's back.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headway.torch_tools.users_names import users_path

STATISTIC_BYTES = 1 << 16
"""Up to this size a buffer may be a running statistic."""
LARGEST_BYTES = 1 << 26
"""A larger buffer is a table, not a statistic: no copy is kept of it."""


class BufferShadow:
    """The buffers as they were before this step's forward."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._roots = list(modules)
        # Weak: a module that is taken out of the model shall go, and its buffers with it.
        self._homes: list[tuple[weakref.ref[nn.Module], str, str]] = []
        self._copies: list[Tensor | None] = []
        # The tensor itself, not its id: that of one replaced meanwhile may be another's by now.
        self._stamps: list[tuple[Tensor, int] | None] = []
        self.changing: set[int] = set()
        """Positions of the buffers that training changes, or may."""
        self.look_again()
        self.renew()
        self.changing.clear()

    def __len__(self) -> int:
        return len(self._homes)

    @property
    def names(self) -> list[str]:
        """Their paths in the model."""
        return [path for _, _, path in self._homes]

    def look_again(self) -> None:
        """Find the buffers that were not there before; the others keep their positions.

        The place of one whose module is gone is taken by the one that came to its path.
        """
        known = {(id(module), name) for home, name, _ in self._homes if (module := home())}
        free = {path: at for at, (home, _, path) in enumerate(self._homes) if home() is None}
        for at in free.values():
            self._copies[at] = self._stamps[at] = None
        seen = {id(self.current(position)) for position in range(len(self._homes))}
        for root in self._roots:
            for path, module in root.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is None or (id(module), name) in known or id(buffer) in seen:
                        continue
                    if buffer.nbytes <= LARGEST_BYTES:
                        seen.add(id(buffer))
                        self._settle_in(module, name, users_path(f"{path}.{name}"), free)

    def _settle_in(self, module: nn.Module, name: str, path: str, free: dict[str, int]) -> None:
        home = (weakref.ref(module), name, path)
        if path in free:
            self._homes[free.pop(path)] = home
        else:
            self._homes.append(home)
            self._copies.append(None)
            self._stamps.append(None)

    def current(self, position: int) -> Tensor | None:
        """The buffer itself, as it is now."""
        home, name, _ = self._homes[position]
        module = home()
        return None if module is None else module._buffers.get(name)

    def touched(self) -> list[int]:
        """Positions of the buffers that changed, or may have, since they were last copied."""
        found = []
        for position, (home, name, _) in enumerate(self._homes):
            module = home()
            buffer = None if module is None else module._buffers.get(name)
            if module is None or buffer is None:
                continue
            stamp = self._stamps[position]
            if (
                stamp is None
                or stamp[0] is not buffer
                or stamp[1] != buffer._version
                or (module.training and _may_be_statistic(buffer))
            ):
                found.append(position)
        return found

    @torch.no_grad()
    def renew(self) -> None:
        """Take the present buffers for good."""
        pairs: list[tuple[Tensor, Tensor]] = []
        for position in self.touched():
            buffer, copy = self.current(position), self._copies[position]
            assert buffer is not None
            if copy is not None and _alike(copy, buffer):
                pairs.append((copy, buffer))
            else:
                self._copies[position] = buffer.detach().clone()
            self._stamp(position, buffer)
            self.changing.add(position)
        if pairs:
            torch._foreach_copy_([copy for copy, _ in pairs], [buffer for _, buffer in pairs])

    @torch.no_grad()
    def restore(self) -> int:
        """Put the copies back where something changed; how many that were."""
        touched = self.touched()
        for position in touched:
            buffer, copy = self.current(position), self._copies[position]
            if buffer is None or copy is None:
                continue
            if _alike(copy, buffer):
                buffer.copy_(copy)
            else:  # the forward put another tensor in its place
                home, name, _ = self._homes[position]
                buffer = copy.clone()
                if (module := home()) is not None:
                    module._buffers[name] = buffer
            self._stamp(position, buffer)
        return len(touched)

    @torch.no_grad()
    def settle_on_device(self, bad: Tensor) -> None:
        """Restore where `bad` is true and renew where it is not, without asking the host which."""
        by_dtype: dict[torch.dtype, list[int]] = {}
        for position in self.touched():
            buffer, copy = self.current(position), self._copies[position]
            assert buffer is not None
            if copy is None or not _alike(copy, buffer) or buffer.device != bad.device:
                self._copies[position] = buffer.detach().clone()
                self._stamp(position, buffer)
            else:
                by_dtype.setdefault(buffer.dtype, []).append(position)
        for positions in by_dtype.values():
            self._settle(positions, bad)

    def _settle(self, positions: Sequence[int], bad: Tensor) -> None:
        present = [self.current(at) for at in positions]
        live = [buffer for buffer in present if buffer is not None]
        copies = [copy for at in positions if (copy := self._copies[at]) is not None]
        # One flat select instead of one per buffer: a ResNet has hundreds of them.
        flat = torch.where(
            bad,
            torch.cat([t.reshape(-1) for t in copies]),
            torch.cat([t.reshape(-1) for t in live]),
        )
        pieces = [
            piece.view(buffer.shape)
            for piece, buffer in zip(flat.split([b.numel() for b in live]), live, strict=True)
        ]
        torch._foreach_copy_(live, pieces)
        torch._foreach_copy_(copies, pieces)
        for position, buffer in zip(positions, live, strict=True):
            self._stamp(position, buffer)
            self.changing.add(position)

    def _stamp(self, position: int, buffer: Tensor) -> None:
        self._stamps[position] = (buffer, buffer._version)


def _may_be_statistic(buffer: Tensor) -> bool:
    return buffer.nbytes <= STATISTIC_BYTES and buffer.is_floating_point()


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
