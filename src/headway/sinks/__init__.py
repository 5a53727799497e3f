"""Where records and findings go: one file per kind of place."""
