"""The fields of NVIDIA's gpu-operator, and the notices on those without effect in Tessera."""
