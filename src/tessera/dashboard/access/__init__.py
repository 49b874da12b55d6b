"""Who a visitor is, and what the visitor may see: bearer tokens and rights, as the API server judges them."""
