"""The model of the paper and its training."""
