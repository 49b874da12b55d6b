"""kube-controller-manager's part of the lab: one controller a file, all of them clients of the API.

:mod:`suite` starts them. They share one mirror of each resource (:mod:`mirrors`), are woken by events only and write
status through the status subresource. Not implemented, and said so in events where somebody could wait for it: indexed
Jobs, volume claim templates, surge of DaemonSets, ControllerRevision objects.
"""
