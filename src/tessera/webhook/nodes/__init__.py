"""The GPU resources of the cluster's nodes, and the nodes that a pod's author selects."""
