"""Lexical shortlists: learned by IBM Model 1, stored as a table."""
