"""The torch half: watching a training as it runs.

    guard.py      the public object: two lines around a training loop
    watch.py      one optimizer's steps: measure, judge, hold back or clip, record
    roster.py     which parameters there are, under which names
    probes.py     gradient norms in one pass
    brake.py      holding an update back so that nothing moves, on the host or inside a fused kernel
    buffers.py    putting back what a bad forward did to BatchNorm statistics and their like
    clips.py      what the gradients were before the user clipped them
    closures.py   optimizers that call backward themselves
    transfer.py   numbers from the device to the host without waiting for it
    samples.py    what is measured now and then: update sizes, weights, memory
    seams.py      where torch itself is watched: backward, gradient clipping, GradScaler
    scan.py       looking for non-finite numbers in the state once something went wrong
    recorder.py   from numbers to records, findings, actions and the run directory

A healthy run passes through all of it unchanged, bit for bit.
"""
