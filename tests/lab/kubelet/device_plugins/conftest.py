"""Fixtures of the folder: a device plugin and a kubelet of plain values."""

from tests.support.kubelet_plugins import folder, make_plugin, manager, plugin, pods

__all__ = ["folder", "make_plugin", "manager", "plugin", "pods"]
