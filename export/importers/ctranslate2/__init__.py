"""Importer of CTranslate2 models."""
