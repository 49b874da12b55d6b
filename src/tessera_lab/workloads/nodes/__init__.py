"""Controllers of nodes: taints, lost nodes, and pods that no kubelet will end."""
