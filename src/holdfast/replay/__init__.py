"""Say why: replay the failing step, name where the bad number was born, and try the cures on it.

    scene.py          the step: what it trains, its batches, how to run it again
    passes.py         one run of it, and what came of it
    trace.py          every op of a pass and how their results flow
    localise.py       from a bad loss or gradient back to the op that made it
    births.py         why that op did: the kinds of birth, in plain words
    remedies/         what could help, each as something that can be in force for one pass
    counterfactual.py which remedies fit, and which of them worked
    investigation.py  the plan: which passes, in which order
    explanation.py    the outcome, as data
    capsule.py        the incident on disk, to be replayed elsewhere

Nothing here knows of the guard: `live/` runs the passes it is asked for.
"""
