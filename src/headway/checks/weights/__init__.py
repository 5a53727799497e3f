"""Checks of weights, activations and numeric precision (HD3xx)."""
