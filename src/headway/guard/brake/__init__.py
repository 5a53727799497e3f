"""What changes an update: adaptive clipping and a lower learning rate."""
