"""Reads an installation of NVIDIA's gpu-operator: Helm values or a ClusterPolicy, as Tessera's settings."""
