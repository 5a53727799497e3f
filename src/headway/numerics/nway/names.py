"""The scores, what each is, and the version numbers they were published under."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """One way to say how well N vectors belong together; `meaning` leaves out constants."""

    name: str
    meaning: str
    published: tuple[str, ...]
    """Old names: `v4` is `logitsversion` 4, `stable-v1` the first of the "stable" ones."""
    degree: int | None = 1
    """If all features grow by c the score grows by c to this power. 0: to the power N; None: by
    no power."""
    constant: float = 0.0
    """What was published adds it. No softmax sees it, unless a mask is multiplied with logits."""
    lines: bool = True
    """A score of N vectors, with N axes; the others compare sample i with sample j."""


SCORES = {
    score.name: score
    for score in (
        Score("product", "Σ_z Π_k f_k", ("stable-v0", "v0"), degree=0),
        Score("norm", "‖S‖", ("stable-v1", "v7", "v8", "v10")),
        Score("norm-mean", "‖S‖ / N", ("v9",)),
        Score("leave-one-out", "Σ_k ⟨(S−f_k)/‖S−f_k‖, f_k⟩", ("v11", "v12")),
        Score("variance", "−(Σ‖f_k‖² − ‖S‖²/N)", ("v4", "v13", "v14"), degree=2, constant=1),
        Score("std", "−√(Σ‖f_k‖² − ‖S‖²/N)", ("v5",), constant=1),
        Score("coordinate-std", "−mean_z √(Q − S²/N)", ("v1", "v6"), constant=1),
        Score("coordinate-variance", "−√Σ_z (Q − S²/N)²", ("v2",), degree=2, constant=1),
        Score("coordinate-energy", "−Σ_z √Q", ("v3",), constant=1),
        Score("coordinate-spread", "Σ_z (m − √N m + √Q)", ("v15",)),
        Score("coordinate-evenness", "Σ_z (m + √N m − √Q)", ("v16",)),
        Score("coordinate-sixth", "Σ_z (S/N − m⁶/2)", ("v17",), degree=None),
        Score(
            "cosine",
            "geometric mean over k of ⟨f_k[i], m̂[j]⟩",
            ("stable-v2",),
            degree=None,
            lines=False,
        ),
        Score("distance", "−mean_k ‖f_k[i] − m[j]‖", ("stable-v3",), lines=False),
        Score("pairwise", "⟨f_k[i], f_l[j]⟩ for every pair", ("v-1",), degree=2, lines=False),
        Score("anchor", "⟨f_0[i], c[j]⟩/2 and ⟨c[i], c[j]⟩/2", ("svc",), degree=2, lines=False),
    )
}
"""S = Σ_k f_k, Q = Σ_k f_k², m = Σ_k |f_k| / N by coordinate; m̂ the unit mean, c the mean of
all but the first modality."""

_BY_ALIAS = {alias: score for score in SCORES.values() for alias in score.published}


def find_score(name: str) -> Score:
    """The score of that name, or of that published number (`v11`, `stable-v2`)."""
    found = SCORES.get(name) or _BY_ALIAS.get(name)
    if found is None:
        if name == "v18":
            raise ValueError(
                "score 'v18' never worked: it computed 6^3, which is 5 in Python, and raised"
            )
        raise ValueError(
            f"no score is called {name!r}; there are {', '.join(map(repr, SCORES))}, "
            "and the published numbers such as 'v11' or 'stable-v2'"
        )
    return found
