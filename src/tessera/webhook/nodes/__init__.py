"""What the cluster's nodes offer, and which of them a pod's author selects."""
