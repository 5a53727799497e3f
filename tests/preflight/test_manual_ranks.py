"""Which parameters of ranks without a wrapper are replicas, and by which norm they clip."""

from __future__ import annotations

import pytest

from headway.preflight.observers.rank_states import RankState, find_clip_norms, find_replicas


def rank(
    weights: str,
    gradients: str,
    exchanged: str = "",
    varied: str = "",
    **more: float | bool | None,
) -> RankState:
    """One letter for each parameter; equal letters are equal values."""
    count = len(weights)
    return RankState(
        weights=[float(ord(letter)) for letter in weights],
        gradients=[float(letter != "0") * ord(letter) for letter in gradients],
        exchanged=[letter == "x" for letter in exchanged.ljust(count)],
        varied=[letter == "v" for letter in varied.ljust(count, "v")],
        sizes=[8] * count,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # Tensor parallel: the norm is a replica, the weight and its bias of zeros are shards.
        (
            [
                rank("nab", "gpq", varied="cvc", shares=True),
                rank("ncb", "grs", varied="cvc", shares=True),
            ],
            ["gradient", "", ""],
        ),
        # Stages of a pipeline that were made from the same seed.
        ([rank("ab", "pq", shares=True), rank("ab", "rs", shares=True)], ["", ""]),
        # All gradients are exchanged: one model, however it began.
        ([rank("ab", "pq", "xx"), rank("cd", "rs", "xx")], ["exchanged", "exchanged"]),
        # One is forgotten, and begins equal.
        ([rank("ab", "pq", "x "), rank("ab", "rs", "x ")], ["exchanged", "start"]),
        # Nothing is exchanged at all; models of their own begin different, but for constants.
        ([rank("ab", "pq"), rank("ab", "rs")], ["start", "start"]),
        ([rank("ab", "pq", varied="vc"), rank("cb", "rs", varied="vc")], ["", ""]),
        # A gradient of zeros says nothing.
        ([rank("a", "0", shares=True), rank("a", "0", shares=True)], [""]),
    ],
)
def test_replicas(ranks: list[RankState], expected: list[str]) -> None:
    assert find_replicas(ranks) == expected


def test_clip_norms() -> None:
    why = ["gradient", ""]

    def clip(*pairs: tuple[float, float]) -> list[float] | None:
        return find_clip_norms([rank("ab", "pq", norm=n, factor=f) for n, f in pairs], why)

    assert clip((2.0, 0.5), (4.0, 0.25)) == [2.0, 4.0]  # each scaled to 1 by its own norm
    assert clip((2.0, 0.5), (4.0, 0.5)) is None  # one factor for all
    assert clip((2.0, 1.0), (4.0, 1.0)) is None  # not scaled
    own = [rank("ab", "pq", clip=2.0), rank("ab", "pq", clip=3.0)]
    assert find_clip_norms(own, why) == [2.0, 3.0]
    assert find_clip_norms(own, ["", ""]) is None
