"""Checks of distributed runs, across ranks (HD6xx)."""
