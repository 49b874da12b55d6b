"""Controllers of other objects: garbage collection by owner, namespaces, and endpoints of Services."""
