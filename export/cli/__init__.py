"""The commands that import, compile and verify models."""
