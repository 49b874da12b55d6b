"""Kubelet's manager of ResourceClaims."""
