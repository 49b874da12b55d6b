"""The lab's scheduler: kube-scheduler's filters and messages, preemption, and the binding of volumes.

From bottom to top: :mod:`state` (nodes, placed pods, volumes), :mod:`filters` (which nodes a pod may not have, and
why), :mod:`decision` (the node of one pod), :mod:`preemption` (which pods end for it). These do no I/O.
:mod:`scheduler` does, with :mod:`queue`, :mod:`victims` and :mod:`volume_binding`.
"""
