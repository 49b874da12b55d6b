"""The live page: a process of its own that reads the cluster and serves a page, so that no visitor slows a decision.

- :mod:`documents` makes what the page shows from what was read: a JSON document for each card, pod and node.
- :mod:`feed` keeps the documents and hands out what changed.
- :mod:`source` reads the cluster.
- :mod:`server` serves the page and the feed.
"""
