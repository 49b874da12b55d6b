"""The lab's scheduler: kube-scheduler's filters and messages, preemption, and the binding of claims and volumes.

From bottom to top: :mod:`state` (nodes, placed pods, claims, volumes), :mod:`filters` (nodes that a pod cannot have,
with the reasons), :mod:`decision` (the node of one pod), :mod:`preemption` (pods to end for another pod). These do no
I/O. :mod:`scheduler` does, with :mod:`claim_binding`.
"""
