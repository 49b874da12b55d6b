"""Labels, annotations and pods that describe a node's GPUs and its agent."""
