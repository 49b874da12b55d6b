"""One simulated node: its Node object and Lease, and the kubelet that runs its pods."""
