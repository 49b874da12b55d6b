"""``nvidia-smi`` on simulated cards."""
