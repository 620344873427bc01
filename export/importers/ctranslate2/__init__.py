"""Models that CTranslate2 converted."""
