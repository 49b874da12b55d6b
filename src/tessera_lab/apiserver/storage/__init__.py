"""Storage: objects with their history, watches, and selectors."""
