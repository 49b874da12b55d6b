"""A simulated kubelet: real admission, device manager and pod life cycle over containers that are only simulated.

:mod:`node` assembles one node. Pure rooms: :mod:`devices` (who holds which device), :mod:`program` (what a command
does), :mod:`podstatus` (what a pod's status says), :mod:`admission` (whether the node takes a pod). The rest does I/O:
:mod:`plugins` drives device plugins, :mod:`worker` lives one pod's life, :mod:`nodeobject` keeps the Node object.
"""
