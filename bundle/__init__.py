"""Writes the OLM bundle in ``bundle/tessera`` from the manifests in ``deploy/``: ``python -m bundle``.

``python -m bundle.check`` checks a bundle by the rules of the Operator Framework.
"""
