"""Builds the site of the documentation: ``make docs``. It needs no other server, neither to build nor to read."""
