"""The incident on disk: its folder, packed batch and state, checksums and README."""
