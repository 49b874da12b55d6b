"""The cluster as watches show it: pods, nodes, Instaslice objects and volumes, with indexes over them, and filters.

The filters are the scheduler's, applied before a slice is promised. They are hand-written because kube-scheduler has no
call that answers where a pod could run: its rules exist only in Go (``k8s.io/kubernetes/pkg/scheduler/framework/
plugins``), and no Python library has them.
"""
