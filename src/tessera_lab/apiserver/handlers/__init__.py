"""The verbs: from a request for a resource to its answer."""
