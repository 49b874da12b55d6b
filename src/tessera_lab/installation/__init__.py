"""Runs Tessera inside a simulated cluster, from the manifests that users install."""
