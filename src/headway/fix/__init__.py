"""Writes fixes into the user's source, and keeps only those that a fresh run confirms.

project.py        which files may be edited; their contents, diffs, writing and restoring
proposals/        edits for a finding: bad numbers, and faults that a small edit removes
fresh_run.py      `headway check` or `headway replay` again, in a process of its own
verdict.py        compares two runs: is the finding gone, is anything new, are the losses the same
session.py        tries edits one by one and keeps what was confirmed
"""
