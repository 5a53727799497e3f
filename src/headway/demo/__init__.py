"""The demo: a small model learns to spell, a batch goes bad, the guard holds, all is measured.

`story.py` runs it and proves each claim; `teller.py` tells it on the terminal; the rest is a
training such as anybody might write.
"""
