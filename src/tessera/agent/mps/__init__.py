"""Cards shared through MPS: control daemons, limits of their clients, and what a container needs to be a client."""
