"""A stretch of what has been gathered, in as many points as are wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.charts.downsample import Downsampler
from headway.charts.gather import ChartData
from headway.charts.heat import CELLS, HeatMap
from headway.charts.timeline import FARTHEST


def ends_of(data: ChartData, first: int | None, last: int | None) -> tuple[int, int]:
    """Where a window begins and ends that may be asked for with anything."""
    begin = 0 if first is None else min(max(first, 0), FARTHEST)
    end = data.end if last is None else min(max(last, 0), FARTHEST)
    return begin, max(end, begin)


def narrowed(data: ChartData, begin: int, end: int, points: int) -> ChartData:
    """What there is to draw of it between two places, both included."""
    return replace(
        data,
        series={name: series.narrowed(begin, end, points) for name, series in data.series.items()},
        held=data.held.narrowed(begin, end, points),
        marks=[mark for mark in data.marks if begin <= mark.x <= end],
        maps={
            name: cut
            for name, picture in data.maps.items()
            if (cut := _cut(picture, begin, end)) is not None
        },
    )


def _cut(picture: HeatMap, begin: int, end: int) -> HeatMap | None:
    """The cells of a stretch."""
    first = max((begin - picture.start) // picture.width, 0)
    last = (end - picture.start) // picture.width
    codes = picture.codes[:, first : max(last + 1, first)]
    if not codes.shape[1]:
        return None
    start, width = picture.start + first * picture.width, picture.width
    size = -(-codes.shape[1] // CELLS)
    if size > 1:  # the codes are in the order of what they stand for: the worst stays
        codes = np.maximum.reduceat(codes, np.arange(0, codes.shape[1], size), axis=1)
        width *= size
    return replace(picture, start=start, width=width, codes=codes)


def joined(one: Downsampler | None, other: Downsampler | None, points: int) -> Downsampler:
    """One series from two that lie next to each other; of a missing one, nothing."""
    if one is None or other is None:
        return one or other or Downsampler(points)
    return one.followed_by(other)
