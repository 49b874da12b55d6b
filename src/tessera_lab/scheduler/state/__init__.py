"""The scheduler's memory: nodes, placed pods, their requests, claims and volumes."""
