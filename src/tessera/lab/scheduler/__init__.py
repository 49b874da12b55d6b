"""The lab's scheduler: kube-scheduler's filters and words, without preemption, inter-pod rules and volumes.

Pure rooms: :mod:`requests` (what a pod needs), :mod:`affinity` and :mod:`taints` (where it may go), :mod:`cluster` (who
holds what), :mod:`decision` (one pod, one answer). :mod:`scheduler` does the I/O.
"""
