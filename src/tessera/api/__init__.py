"""Typed models of what users write and what Tessera stores."""
