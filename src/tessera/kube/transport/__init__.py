"""Carries API requests: the transport protocol, HTTP, kubeconfig and credentials."""
