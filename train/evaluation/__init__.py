"""Scores, validation and attention maps of trained models."""
