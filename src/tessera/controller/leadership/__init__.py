"""One term of leadership: watches, the slicer, its executor, drivers and provisioning."""
