"""Controllers that make pods: ReplicaSet, Deployment, StatefulSet, DaemonSet, Job."""
