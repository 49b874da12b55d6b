"""What images of the driver stack do in the lab: programs with costs, markers and a kernel module; all simulated."""
