"""Observers of the data: loaders, inputs, labels, leakage."""
