"""The scheduler's filters, applied before a slice is promised.

Hand-written because kube-scheduler has no call that answers where a pod could run: its rules exist only in Go
(``k8s.io/kubernetes/pkg/scheduler/framework/plugins``), and no Python library has them.
"""
