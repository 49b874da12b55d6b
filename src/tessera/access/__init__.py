"""Bearer tokens and rights of those who read Tessera's pages, as the API server judges them."""
