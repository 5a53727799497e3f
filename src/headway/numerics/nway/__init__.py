"""The contrastive loss over any number of modalities, by the lines through the hyper-diagonal.

names        the scores, and the version numbers they were published under
features     what is accepted; half to single precision, unit rows, a common scale
scores       from features to lines: what varies along a line, and what stays
lines        the two kinds of lines: one matrix product, or anything in tiles
streaming    the cross entropy along a line and its gradient, block by block: of `gram` lines or of
             `tiles`, some of them with gradients written out (`by_hand`)
sums         norm and variance on a GPU, normalisation included
fused        when the Triton `kernels` do what lies between the products
tuples       the score of given tuples, as defined
dense        soft targets and masks, for which every tuple counts
gather       features of all ranks, with gradients
temperature  a learnable scale with a limit
loss, module the function and the module
"""
