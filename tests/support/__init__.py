"""Fixtures and helpers that tests of several folders share."""
