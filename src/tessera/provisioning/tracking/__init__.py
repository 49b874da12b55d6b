"""Infers the milestones of each node from Nodes, Pods, Machines and Events."""
