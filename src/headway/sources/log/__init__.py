"""What all logs of other tools share: rows of named numbers, what they mean, and the stream."""
