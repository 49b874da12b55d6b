"""Writes provisioning records: to the ConfigMap history and to node annotations."""
