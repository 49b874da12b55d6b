"""The scheduler's filters, applied before a slice is promised."""
