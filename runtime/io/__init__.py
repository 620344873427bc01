"""Files: lines in, outputs that are complete or absent, locks, hashes, reports."""
