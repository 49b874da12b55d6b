"""One parsed request, and the server's state that all handlers share."""
