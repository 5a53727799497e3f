"""Logs written by other tools: reading them, naming their signals, and turning them into records.

How to add a log format:

- A console log whose rows are lines: add one row to `DIALECTS` in `formats/console_dialects.py`.
- Any other format: write one module in `formats/` with a tuple `READERS` of `LogReader`s, each with
  a name, a label, `recognise(sample) -> certainty` and `read(path) -> Log`. `readers.py` finds it.
- A metric name that is not understood: add it to `log_names.py`.
- A setting that is called differently: add the name to `setting_names.py`.

A sample file goes to `tests/data`; `tests/logs` and `tests/fuzz` pick up new readers and check that
damaged files end in `UnreadableInput`. Reading is bounded in memory and executes nothing.

From file to finding: `readers.py` chooses the reader, which returns a `Log` (`log_table.py`);
`log_folders.py` and `join_logs.py` put together several logs of one run; `log_stream.py` turns the
log into the records that the checks receive.
"""
