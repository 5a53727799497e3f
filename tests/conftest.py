"""Shared by all tests: this folder is on the path, so `literate` and friends import plainly."""
