"""The names of older scripts that NumPy 2 no longer has."""

import numpy as np

for _name, _value in {"Inf": np.inf, "bool8": np.bool_, "float_": np.float64}.items():
    if not hasattr(np, _name):
        setattr(np, _name, _value)
