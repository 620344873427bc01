"""Models that other toolkits trained, made checkpoints: one file per format."""
