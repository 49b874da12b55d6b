"""``port-forward``: connections to pods through a WebSocket that carries SPDY (KEP-4006)."""
