"""The contrastive loss over any number of modalities, exact at any batch size."""
