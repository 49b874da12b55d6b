"""The cluster process: one reconciler a file."""
