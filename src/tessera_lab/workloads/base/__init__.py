"""Shared parts of the controllers: mirrors, ownership, expectations, pods."""
