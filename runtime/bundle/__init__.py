"""Bundles: the manifest, the contract of the graphs, prompts, and checks against them."""
