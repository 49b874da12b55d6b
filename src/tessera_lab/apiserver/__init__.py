"""The lab's API server: Kubernetes' API conventions in one process, without I/O of its own."""
