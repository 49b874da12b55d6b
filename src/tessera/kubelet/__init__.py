"""What kubelet and the node's device plugins say to each other: gRPC servers and clients, wire models."""
