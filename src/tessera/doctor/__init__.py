"""Examines a cluster before and after an installation, and says what to do."""
