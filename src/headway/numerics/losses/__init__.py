"""Losses that return 0, not NaN, when no element counts.

The mean over nothing is 0, with gradient 0.
"""
