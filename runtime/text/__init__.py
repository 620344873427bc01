"""Text processing: SentencePiece tokenization and segmentation of long lines."""
