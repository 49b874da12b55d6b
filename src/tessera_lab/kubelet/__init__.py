"""A simulated kubelet: real admission, device manager and pod life cycle over containers that are only simulated.

Folders from bottom to top:

* :mod:`context` (options of a node), :mod:`pod_status` (a pod's status from its containers' records);
* :mod:`devices` device plugins and the ledger of their devices; :mod:`images` registries, pulled images, programs;
* :mod:`containers` the containers of one pod; :mod:`pods` admission, and one worker for each pod;
* :mod:`node` the Node object, and the whole node.
"""
