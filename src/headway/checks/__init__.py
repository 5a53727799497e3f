"""The checks, one page each: `hd101_nonfinite_loss.py` is check HD101, nonfinite-loss.

HD0 the tool itself · HD1 loss · HD2 gradients · HD3 weights, activations, precision ·
HD4 optimizer and schedule · HD5 data · HD6 distributed · HD7 checkpoints · HD8 speed and memory ·
HD9 set-up. `CONTRIBUTING.md` says how to add one in two files.
"""
