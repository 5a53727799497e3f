"""Several ranks: one vote per step, and the table of what each rank reported."""
