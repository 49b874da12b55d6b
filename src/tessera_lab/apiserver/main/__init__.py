"""The assembled API server, and its two transports: HTTPS and in-process calls."""
