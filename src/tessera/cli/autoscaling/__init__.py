"""The commands of ``tessera autoscaler``, and what is known of a cluster's autoscaler."""
