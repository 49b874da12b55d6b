"""Driver settings of administrators (``ClusterPolicy``, ``NVIDIADriver``) and the driver status of nodes."""
