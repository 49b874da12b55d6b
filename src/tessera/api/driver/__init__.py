"""What administrators say about drivers, and what they are told: ``ClusterPolicy``, ``NVIDIADriver``, node status."""
