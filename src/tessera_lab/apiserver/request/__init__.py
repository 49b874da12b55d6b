"""A request as the handlers read it, and the server's state that they share."""
