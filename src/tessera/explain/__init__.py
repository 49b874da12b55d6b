"""Explains the reason that a pod waits or a node's cards are not as configured, and lists steps that help.

``tessera why`` prints these explanations; a web page or the controller's API can serve the same. Nothing here knows the
command line: :mod:`tessera.explain.query` reads the cluster, every other module decides on a snapshot without I/O.
"""
