"""The embedded control plane: API server, scheduler, workloads, simulated kubelets. Everything in it is simulated."""
