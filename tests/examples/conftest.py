"""Clusters on virtual time; see :mod:`tests.support.virtual_lab`."""

from tests.cluster.conftest import booted_labs, in_lab, node_files, valid_states

__all__ = ["booted_labs", "in_lab", "node_files", "valid_states"]
