"""The Common Expression Language (CEL): syntax, evaluation and functions."""
