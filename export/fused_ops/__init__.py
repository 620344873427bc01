"""Fused operators: their declarations, and the rules that find them in a graph."""
