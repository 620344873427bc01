"""Importers of models that other toolkits trained, one module or folder per format."""
