"""Models of Hugging Face's transformers: Marian, M2M100, NLLB, BART, mBART."""
