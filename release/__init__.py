"""Makes what a release publishes: the image and the kubectl plugin. ``python -m release --help``.

Nothing here publishes anything, and nothing here is in the product. What runs inside the Containerfile
(:mod:`release.image.root`) uses the standard library, pip, apt and dpkg only.
"""
