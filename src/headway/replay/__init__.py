"""Say why: replay the failing step, name where the bad number was born, and try the cures on it.

    scene.py          the step: what it trains, its batches, how to run it again
    passes.py         one run of it, and what came of it
    trace.py          every op of a pass and how their results flow
      calls.py          one op, and what is kept of one whose result was bad
      autopsy.py        what is gathered while its tensors are there: …
      sources.py        … where its bad inputs come from (writes.py: who wrote which memory)
      deliberate.py     … and whether they are meant (masks)
      samples.py        … in which samples of the batch
      forward_calls.py  from a node of autograd to its forward op; ambient.py: what torch tells
      frames.py         the user's line; module_paths.py: the module
    localise.py       from a bad loss or gradient back to the op that made it
    spikes.py         the same for jumps that are finite (shares.py: each sample's part in them)
    births.py         why that op did: the kinds of birth, in plain words
    remedies/         what could help, each as something that can be in force for one pass
    counterfactual.py which remedies fit, and which of them worked
    investigation.py  the plan: which passes, in which order
    explanation.py    the outcome, as data
    capsule.py        the incident on disk, to be replayed elsewhere
      contents.py       what of it is kept, and what is not
      packing.py        batches and states in plain containers …
      unpacking.py      … and as the loop knows them
      sealed.py         files that tell whether they are what was written
      versions.py       what it happened under
      page.py           its readable page; markdown.py: whose text is nobody's markup
    rehearsed.py      the failing step was run again: does it still go bad?

Nothing here knows of the guard: `live/` runs the passes it is asked for.
"""
