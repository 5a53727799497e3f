"""The torch half: watching a training as it runs.

    guard.py      the public object: two lines around a training loop
    watch.py      one optimizer's steps: measure, judge, hold back or clip, record
    session.py    what is behind the guard: who is told, what is known of the step, who is asked
    note.py       what the host knows of a step when it launches it
    assembly.py   the record of a step, from the parts of its optimizers
    roster.py     which parameters there are, under which names
    probes.py     gradient norms in one pass
    brake.py      holding an update back so that nothing moves, on the host or inside a fused kernel
    buffers.py    putting back what a bad forward did to BatchNorm statistics and their like
    clips.py      what the gradients were before the user clipped them
    closures.py   optimizers that call backward themselves
    scaling.py    which losses a GradScaler scaled, and which gradients still carry its scale
    tokens.py     whether gradients were cleared, and whether a backward reached them
    transfer.py   numbers from the device to the host without waiting for it
    samples.py    what is measured now and then: update sizes, weights, memory
    seams.py      where torch itself is watched: backward, gradient clipping, GradScaler
    graph.py      reading the autograd graph of a loss
    retention.py  graphs that outlive their step, and the line that made them
    hoard.py      the line that keeps what it makes, once memory is seen to grow
    holders.py    the user's variable that keeps tensors
    places.py     the user's own line in a stack
    checkpointing.py  activation checkpointing, switched on from outside
    scan.py       looking for non-finite numbers in the state once something went wrong
    recorder.py   from numbers to records, findings, actions and the run directory
    ranks.py      the other ranks, and the one reduction in which they agree
    ballot.py     an optimizer's part in it; tally.py: the table it brings; layout.py: whose norms
    origins.py    which rank made a gradient, before the reduction mixes it with the others'
    shards.py     parameters of which a rank holds only a part
    checksums.py  of weights that must be equal on all ranks, of batches that must not
    duty.py       what a guard that has failed still owes the other ranks
    shield.py     keeping a defect of ours from killing the user's training
    tracking.py   the trackers that a guard shows its run to
    notices.py    what the user is told while training runs

A healthy run passes through all of it unchanged, bit for bit.
"""
