"""Labels, annotations and pods by which a node tells of its GPUs and its agent."""
