"""What the cluster's cards do now, for the command line and the live page: read from the agents, joined, and sorted."""
