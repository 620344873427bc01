"""Training runs: optimizer steps, processes, metrics, and the run directory."""
