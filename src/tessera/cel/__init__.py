"""The Common Expression Language (CEL) as Kubernetes uses it: syntax, evaluation and functions."""
