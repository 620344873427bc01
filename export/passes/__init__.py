"""One graph rewrite per file."""
