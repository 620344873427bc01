"""Bundles: manifest, graph contract, prompts, and validation of options and tokens."""
