"""Observers of the model: layers, modes, parameters, devices."""
