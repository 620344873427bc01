"""Text to token files and batches."""
