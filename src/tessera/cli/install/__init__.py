"""``tessera install``: which objects an installation is made of, and how they come into a cluster."""
