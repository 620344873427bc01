"""HTTP server: LibreTranslate's API and our extensions on `TranslationService`."""
