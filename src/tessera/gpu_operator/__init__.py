"""Reads what NVIDIA's gpu-operator is told: ClusterPolicies, NVIDIADrivers, and the values of its charts."""
