"""Serving: HTTP, the Triton Inference Server, and corpora on a cluster."""
