"""ClusterPolicy and NVIDIADriver objects: watch, selection per node, and the last valid version of each."""
