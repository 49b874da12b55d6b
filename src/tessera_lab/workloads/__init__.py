"""kube-controller-manager's part of the lab: one controller a file, each a client of the API server.

:mod:`suite` starts them. They share one mirror of each resource (:mod:`base.mirrors`). Events wake them; they write
status through the status subresource. Not implemented, and reported in events: indexed Jobs, surge of DaemonSets,
ControllerRevision objects.
"""
