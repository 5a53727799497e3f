"""Checkpoints, read without torch and without executing anything in them.

`checkpoint_discovery.py` recognises a format by content and opens a checkpoint: the name and byte
range of every tensor, and what is wrong with it. `tensor_statistics.py` measures the tensors, and
`checkpoint_records.py` turns them into records for the checks. `inert_pickle.py` interprets pickles
without importing or calling anything that they name; `pickle_allowlist.py` lists the names that
build data.
"""
