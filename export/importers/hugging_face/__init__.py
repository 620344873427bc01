"""Importers of models that transformers saved: Marian, M2M100, NLLB, BART, mBART."""
