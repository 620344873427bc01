"""Importer of Marian's own models."""
