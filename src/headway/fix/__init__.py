"""Writes fixes into the user's source, and keeps only those that a fresh run confirms.

project.py        the files that may be edited: contents, diffs, writing and restoring
proposals/        edits for a finding: bad numbers, and faults that a small edit removes
fresh_run.py      runs `headway check` or `headway replay` again in a separate process
verdict.py        compares two runs: their findings, and the losses of healthy steps
syntax.py         finds statements and calls, and writes changes of them as edits
fix_session.py    tries edits one by one and keeps those that are confirmed
"""
