"""Clusters on virtual time; see :mod:`tests.support.virtual_lab`."""

from tests.cluster.conftest import booted_labs, in_lab, valid_states

__all__ = ["booted_labs", "in_lab", "valid_states"]
