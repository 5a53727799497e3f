"""DataLoaders of torch: the batches they yield, the samples in them, and how a batch is made."""
