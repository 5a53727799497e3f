"""Guards a training as it runs: measures every step, skips bad updates, recovers, records."""
