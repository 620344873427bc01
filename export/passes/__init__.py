"""Rewrites of traced graphs, one file per concern; `pipeline.py` orders them."""
