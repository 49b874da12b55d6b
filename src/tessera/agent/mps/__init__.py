"""Shares cards through MPS: control daemons, limits of their clients, and the edits that make a container a client."""
