"""Kubelet's device manager: device plugins, the ledger of their devices, and its checkpoint."""
