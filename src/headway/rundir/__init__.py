"""The run directory: its files, its writer, its reader, and the downsampled series drawn from
it.
"""
