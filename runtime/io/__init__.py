"""File I/O: lines of text, atomic outputs, locks, hashes and tables."""
