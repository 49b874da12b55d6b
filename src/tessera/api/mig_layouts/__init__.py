"""MIG layouts by name: NVIDIA's mig-parted file, and the layouts generated without a file."""
