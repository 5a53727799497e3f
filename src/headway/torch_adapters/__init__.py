"""The only code that touches private parts of torch or of the interpreter."""
