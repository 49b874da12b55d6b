"""Where a slice goes: cluster state, policy, packing test. Pure code without I/O."""
