"""How many axes, rows and columns to take at once."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

ON_DEVICE = 1 << 27
"""Logits held at once on an accelerator: 512 MiB in float32."""
ON_CPU = 1 << 21


def room(like: Tensor) -> int:
    return ON_CPU if like.device.type == "cpu" else ON_DEVICE


def rows_at_once(like: Tensor, columns: int, depth: int, block: int | None) -> int:
    """`block` if given; else what keeps block × columns × depth inside the room."""
    if block is not None:
        return block
    fit = room(like) // max(columns * depth, 1)
    # Matrix products like multiples of 128; below that, take what there is.
    return max(fit // 128 * 128, min(fit, 128), 16)


def even(step: int, rows: int) -> int:
    """At most `step`, such that the last block is about as large as the others."""
    blocks = -(-rows // step) or 1
    return -(-rows // blocks) or 1


def groups(
    like: Tensor, axes: int, rows: int, columns: int, block: int | None
) -> Iterator[tuple[slice, slice]]:
    """Slices of axes and rows: several whole axes if they fit, else rows of one axis.

    A group of axes costs as many calls as one axis, which is what small batches wait for.
    """
    most = rows_at_once(like, columns, 1, block)
    if block is None and rows <= most:
        step, together = rows, even(max(room(like) // max(rows * columns, 1), 1), axes)
    else:
        step, together = even(most, rows), 1
    for axis in range(0, axes, together):
        for begin in range(0, rows, step):
            yield slice(axis, min(axis + together, axes)), slice(begin, min(begin + step, rows))
