"""A report as one self-contained HTML file: no network, no assets beside it."""
