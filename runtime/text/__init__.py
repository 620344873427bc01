"""Text to tokens: SentencePiece models, and segments of long lines."""
