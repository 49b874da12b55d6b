"""The lab's scheduler: kube-scheduler's filters and words, preemption, and the binding of volumes.

Pure rooms: :mod:`requests` (what a pod needs), :mod:`affinity` and :mod:`taints` (where it may go), :mod:`cluster` (who
holds what), :mod:`neighbours` and :mod:`spread` (what other pods allow), :mod:`volumes` (what its claims allow),
:mod:`decision` (one pod, one answer), :mod:`preemption` (who ends for it). :mod:`scheduler` does the I/O, with
:mod:`victims` and :mod:`volumebinding`.
"""
