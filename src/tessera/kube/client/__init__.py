"""The verbs of the Kubernetes API, its errors, and the decoding of its answers."""
