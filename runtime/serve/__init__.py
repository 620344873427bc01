"""Translating more than one machine does: corpora over a cluster."""
