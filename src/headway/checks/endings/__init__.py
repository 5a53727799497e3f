"""How a run ended: crashed, killed, out of memory, hung, interrupted."""
