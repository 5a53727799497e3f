"""Records how a run ends: exceptions, signals, kills, and the heartbeat that shows them."""
