"""Comparison of bundles with their checkpoints, by translations and layer by layer."""
