"""Explains a failed training step: traces every op, finds where the bad number originated, and
tries remedies.
"""
