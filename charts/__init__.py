"""Writes the Helm chart in ``charts/tessera`` from the manifests in ``deploy/``: ``python -m charts``."""
