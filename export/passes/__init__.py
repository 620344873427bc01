"""Passes: rewrites of traced graphs, one file per concern. `pipeline.py` runs them."""
