"""Models by name: downloads, their installation and verification, and uploads of bundles."""
