"""What ``tessera autoscaler`` shows: tables of advice, and what is known of a cluster's autoscaler."""
