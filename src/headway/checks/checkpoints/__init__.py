"""Checks of saved checkpoints (HD7xx)."""
