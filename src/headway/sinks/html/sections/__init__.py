"""The parts of the page that are words: one file each."""
