"""Why a pod waits: one value, and one module of words that every screen renders it with."""
