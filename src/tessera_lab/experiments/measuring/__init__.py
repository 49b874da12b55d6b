"""Runs the two experiments of Red Hat's article on any cluster, and compares their samples."""
