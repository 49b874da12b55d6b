"""Tessera turns a Kubernetes cluster with NVIDIA GPUs into a GPU service."""

__version__ = "0.2.0"
