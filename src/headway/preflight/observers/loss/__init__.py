"""Observers of the loss: its terms, its inputs and its graph."""
