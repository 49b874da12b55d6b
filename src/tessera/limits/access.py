"""Limits on visitors of a page that runs in the cluster: tokens, rights that are looked up, connections, readers."""
