"""The scheduler's memory: nodes, placed pods, their requests, and volumes."""
