"""Writes the files of ``deploy/monitoring/``: rules and alerts for Prometheus, boards for Grafana.

``python -m monitoring`` writes them. They ship with the manifests; this package does not.
"""
