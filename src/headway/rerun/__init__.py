"""Runs a bad step again in a sandbox, to find its cause and to test remedies."""
