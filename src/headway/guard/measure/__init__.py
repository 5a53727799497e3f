"""Measurements of a step: gradients, parameters, samples, and the record built from them."""
