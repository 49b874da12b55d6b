"""Who may read what Tessera shows: bearer tokens and rights, as the API server judges them."""
