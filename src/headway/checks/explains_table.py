"""Which finding can explain which: the table that diagnosis groups symptoms under causes by."""

from __future__ import annotations

NONFINITE_CODES = ("HD101", "HD102", "HD201", "HD301", "HD302", "HD303", "HD408", "HD701")
"""What a non-finite number becomes as it spreads."""


NONFINITE_OR_RANK = (*NONFINITE_CODES, "HD602")
"""The same, and the rank it was born on: where, which is less than why and more than what."""


BAD_STEPS = ("HD103", "HD104", "HD115", "HD202", "HD207", "HD208", "HD308")
"""How steps that are too large look."""


NOTHING_MOVES = ("HD105", "HD205", "HD306", "HD307", "HD404")
"""How updates that do not happen look."""


NOTHING_LEARNED = (*NOTHING_MOVES, "HD113", "HD203", "HD509", "HD512")
"""How a loss that asks for the wrong thing looks."""


EXPLAINS: dict[str, tuple[str, ...]] = {
    # a poisoned state or input explains every non-finite number downstream of it
    "HD501": (*NONFINITE_OR_RANK, "HD103", "HD207", "HD313", "HD414"),
    "HD112": (*NONFINITE_OR_RANK, "HD103", "HD207", "HD313", "HD414"),
    "HD504": (*NONFINITE_OR_RANK,),
    # a saved state says the same of its tensors, and names them all
    "HD701": ("HD301", "HD302", "HD408"),
    "HD301": ("HD101", "HD102", "HD201", "HD302", "HD303", "HD408", "HD414", "HD313", "HD602"),
    "HD302": ("HD101", "HD102", "HD201", "HD301", "HD303", "HD602"),
    "HD408": ("HD101", "HD102", "HD201", "HD301", "HD303", "HD602"),
    "HD303": ("HD101", "HD102", "HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD602"),
    "HD311": (*NONFINITE_OR_RANK, "HD313", "HD414"),
    "HD602": (*NONFINITE_CODES, "HD313", "HD414"),
    "HD101": ("HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD104", "HD701"),
    # a scaler at its floor says more: gradients are not finite at any scale, step after step
    "HD313": ("HD201", "HD414", "HD105", "HD306"),
    "HD201": ("HD301", "HD408", "HD101", "HD414", "HD701"),
    "HD102": ("HD201", "HD101", "HD701"),
    # steps too large
    "HD206": (*BAD_STEPS, "HD101", "HD201", "HD209", "HD602", "HD403", "HD512", "HD105"),
    "HD209": ("HD207", "HD208", "HD308", "HD202", "HD403", "HD512", "HD105"),
    "HD403": (
        *BAD_STEPS,
        *NONFINITE_OR_RANK,
        "HD304",
        "HD305",
        "HD317",
        "HD318",
        "HD105",
        "HD205",
        "HD414",
        "HD509",
        "HD512",
        "HD404",
    ),
    "HD413": (
        *BAD_STEPS,
        *NONFINITE_OR_RANK,
        "HD403",
        "HD105",
        "HD113",
        "HD317",
        "HD318",
        "HD512",
        "HD404",
        "HD509",
    ),
    "HD116": (
        *BAD_STEPS,
        *NONFINITE_OR_RANK,
        "HD403",
        "HD304",
        "HD305",
        "HD512",
        "HD105",
        "HD404",
        "HD509",
    ),
    "HD316": (
        *BAD_STEPS,
        *NOTHING_MOVES,
        "HD101",
        "HD113",
        "HD201",
        "HD203",
        "HD303",
        "HD304",
        "HD305",
        "HD311",
        "HD317",
        "HD318",
        "HD403",
        "HD509",
        "HD512",
    ),
    "HD411": (*NONFINITE_OR_RANK, "HD103", "HD207", "HD308"),
    "HD412": ("HD105", "HD203", "HD205", "HD307", "HD509", "HD404", "HD308", "HD512", "HD115"),
    "HD202": ("HD104", "HD101", "HD201", "HD208", "HD207", "HD308", "HD602", "HD509", "HD403"),
    "HD308": ("HD104", "HD202", "HD101", "HD201", "HD602", "HD509"),
    "HD104": (
        "HD103",
        "HD207",
        "HD208",
        "HD202",
        "HD304",
        "HD305",
        "HD308",
        "HD101",
        "HD102",
        "HD201",
    ),
    "HD115": ("HD103", "HD104", "HD207"),
    # a loss that left its level first, on bad batches say, makes the updates that follow
    # the loss asks for something else
    "HD111": (*NOTHING_LEARNED, "HD104", "HD110", "HD114", "HD202", "HD304", "HD305", "HD308"),
    "HD110": (*NOTHING_LEARNED,),
    "HD109": (*NOTHING_LEARNED, "HD115"),
    "HD114": (*NOTHING_LEARNED, "HD104", "HD304", "HD305", "HD511"),
    # nothing moves
    "HD108": (*NOTHING_MOVES, "HD106", "HD204", "HD509"),
    "HD905": (*NOTHING_MOVES, "HD108", "HD204"),
    "HD410": (
        *NOTHING_MOVES,
        "HD204",
        "HD409",
        "HD415",
        "HD104",
        "HD115",
        "HD108",
        "HD905",
        "HD512",
        "HD509",
    ),
    "HD401": (
        "HD306",
        "HD105",
        "HD307",
        "HD404",
        "HD403",
        "HD115",
        "HD512",
        "HD509",
        "HD415",
        "HD205",
    ),
    "HD402": (
        "HD306",
        "HD105",
        "HD404",
        "HD205",
        "HD401",
        "HD204",
        "HD403",
        "HD407",
        "HD413",
        "HD512",
        "HD509",
        "HD115",
        "HD415",
    ),
    "HD904": (
        *NOTHING_MOVES,
        "HD402",
        "HD401",
        "HD204",
        "HD403",
        "HD413",
        "HD512",
        "HD509",
        "HD115",
        "HD415",
    ),
    "HD106": ("HD204", "HD205", "HD306", "HD107"),
    "HD204": ("HD306", "HD105"),
    "HD310": (*NOTHING_MOVES, "HD512", "HD509", "HD115"),
    "HD309": (
        *NOTHING_MOVES,
        *NONFINITE_OR_RANK,
        "HD310",
        "HD312",
        "HD311",
        "HD313",
        "HD411",
        "HD315",
        "HD414",
        "HD512",
        "HD509",
        "HD115",
    ),
    "HD312": ("HD205", "HD306", "HD307"),
    "HD314": (*NOTHING_MOVES, "HD208", "HD512", "HD509", "HD115"),
    "HD405": (*NOTHING_MOVES, "HD705", "HD415", "HD512", "HD509", "HD115"),
    "HD404": ("HD105", "HD307"),
    "HD208": ("HD105", "HD307", "HD404"),
    # structure, modes and activations
    "HD906": (*NOTHING_MOVES, "HD401", "HD402", "HD204", "HD512", "HD509", "HD115", "HD415"),
    "HD902": (
        "HD103",
        "HD104",
        "HD105",
        "HD113",
        "HD202",
        "HD203",
        "HD404",
        "HD903",
        "HD512",
        "HD509",
        "HD115",
    ),
    "HD909": ("HD103", "HD105", "HD115", "HD207", "HD304", "HD404", "HD509", "HD512"),
    "HD908": ("HD105", "HD404", "HD512", "HD509", "HD115", "HD203"),
    "HD304": (*NOTHING_MOVES, "HD203", "HD204", "HD509", "HD415", "HD512", "HD115"),
    "HD305": (*NOTHING_MOVES, "HD203", "HD509", "HD512", "HD115"),
    "HD317": ("HD103", "HD104", "HD115", "HD202", "HD203", "HD207", "HD208", "HD308"),
    "HD318": ("HD103", "HD104", "HD202", "HD207", "HD208"),
    # what a resume, a freeze or a loading did
    # a weight that is finite and absurd makes the numbers that are not
    "HD704": ("HD701", "HD301"),
    "HD705": ("HD105", "HD404"),
    "HD706": ("HD113", "HD105", "HD404", "HD409", "HD512", "HD509", "HD115"),
    "HD407": ("HD103", "HD207", "HD406"),
    "HD406": ("HD103", "HD104", "HD202", "HD207", "HD208", "HD308", "HD403"),
    "HD409": ("HD306", "HD415"),
    "HD415": ("HD306", "HD205", "HD204"),
    "HD707": ("HD204", "HD306"),
    "HD315": ("HD312", "HD313", "HD414"),
    "HD807": ("HD804", "HD805"),
    # a component that is dead leaves its branch without a gradient; so do dead units
    "HD205": ("HD306", "HD307"),
    "HD107": ("HD105", "HD512"),
    # the data
    "HD502": (
        *BAD_STEPS,
        "HD105",
        "HD113",
        "HD203",
        "HD304",
        "HD305",
        "HD403",
        "HD404",
        "HD512",
        "HD509",
    ),
    "HD503": ("HD105", "HD306", "HD509", "HD512", "HD404", "HD115"),
    "HD506": ("HD105", "HD512"),
    "HD507": ("HD103", "HD115"),
    "HD510": ("HD103", "HD115", "HD207", "HD512", "HD105", "HD404", "HD509"),
    "HD511": (
        *BAD_STEPS,
        "HD105",
        "HD107",
        "HD113",
        "HD114",
        "HD203",
        "HD403",
        "HD404",
        "HD512",
        "HD509",
    ),
    "HD512": ("HD105", "HD115", "HD404"),
    # many ranks
    "HD605": ("HD601",),
    # what depends on what
    "HD210": ("HD105", "HD404", "HD115", "HD117", "HD512", "HD509"),
    "HD509": ("HD105", "HD404"),
    "HD203": ("HD509",),
    "HD901": ("HD204", "HD306"),
    "HD907": ("HD204", "HD306"),
    # memory
    "HD803": ("HD801", "HD802", "HD804"),
    "HD801": ("HD804",),
}
"""Cause → symptoms it can explain. State stands before its effects: see `_explains`."""
