"""``tessera config check``: explains files of settings and finds mistakes. Only ``command`` reads and prints."""
