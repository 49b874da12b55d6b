"""The cluster process: decides where slices go and tells agents and scheduler. Start it with :func:`run.run`."""
