"""Clusters on virtual time; see :mod:`tests.support.virtual_lab`."""

from tests.cluster.conftest import in_lab

__all__ = ["in_lab"]
