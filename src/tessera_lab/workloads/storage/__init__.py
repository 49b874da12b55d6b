"""Controllers of volumes: binding of claims, and a simulated provisioner."""
