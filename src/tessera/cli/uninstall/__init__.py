"""``tessera uninstall``: what an installation left in a cluster, and the order in which it goes."""
