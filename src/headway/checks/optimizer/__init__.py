"""Checks of the optimizer, its state and the learning-rate schedule (HD4xx)."""
