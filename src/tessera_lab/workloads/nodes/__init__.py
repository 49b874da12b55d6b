"""Controllers of nodes: taints, lost nodes, and pods without a kubelet."""
