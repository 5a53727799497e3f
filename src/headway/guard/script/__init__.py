"""Guards scripts that do not create a guard themselves."""
