"""kube-scheduler's filters: each refuses nodes for one pod, with kube-scheduler's reason."""
