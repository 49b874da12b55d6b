"""The Kubernetes API: client, reflector, caches, leases. Built to the API's conventions, not to any one server."""
