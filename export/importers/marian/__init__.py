"""Marian's own models, and the settings that stand beside them."""
