"""The compiler: checkpoint to bundle."""
