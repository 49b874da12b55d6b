"""Identities of clients (tokens, certificates) and what RBAC allows them."""
