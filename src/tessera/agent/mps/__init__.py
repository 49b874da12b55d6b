"""Cards shared through MPS: the control daemons, the limits of their clients, and what a container gets to see them."""
