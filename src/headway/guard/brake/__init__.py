"""Changes of an update: skipping, adaptive clipping, and a lower learning rate."""
