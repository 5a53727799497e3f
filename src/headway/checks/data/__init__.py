"""Checks of inputs, labels and data loading (HD5xx)."""
