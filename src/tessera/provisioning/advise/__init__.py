"""What measured times to a GPU mean for an autoscaler's timers, for its replace loop, and for a pool of warm nodes."""
