"""Checks of memory, speed and transfers (HD8xx)."""
