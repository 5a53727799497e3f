"""Where records come from: one file per format, each a function from a path to a stream."""
