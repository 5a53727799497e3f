"""Losses that give 0, and not NaN, when there is nothing to learn from. One file each.

Half inputs are computed in float32, and the loss stays float32. Reductions are "mean", "sum" and
"none"; the mean over nothing is 0, with gradient 0.
"""
