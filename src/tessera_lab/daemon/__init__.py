"""``tessera lab up``: a cluster in a background process, with its folder, addresses and control socket."""
