"""Checks of the set-up (HD9xx), of the source and of the checks themselves (HD0xx)."""
