"""The protocols that a simulated kubelet implements for device plugins, in plain values.

The socket servers (``registration_server``, ``pod_resources_server``) and the in-process bus (``inprocess``) call them.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from tessera.kubelet.interfaces import ContainerDevices, PluginOptions, PodResources
from tessera_lab.kubelet.device_plugins.plugin_client import PluginClient

_QUALIFIED_NAME = re.compile(
    r"(?=.{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class RegistrationError(Exception):
    """Kubelet refuses a registration; the text goes back to the plugin."""


class RegistrationHandler(Protocol):
    """Called for every registration. The newest client of a resource replaces the older one, which it may close."""

    async def __call__(self, resource_name: str, options: PluginOptions, client: PluginClient) -> None:
        """Accepts the plugin; returns before it reads the device list.

        Raises:
            RegistrationError: refused.
        """
        ...


class PodResourcesSource(Protocol):
    """Answers the calls of the pod-resources API."""

    async def list(self) -> Sequence[PodResources]:
        """Every pod of the node with the devices of its containers."""
        ...

    async def allocatable(self) -> Sequence[ContainerDevices]:
        """Every device that can be allocated, free or not."""
        ...

    async def get(self, name: str, namespace: str) -> PodResources | None:
        """Returns one pod; ``None`` if the node has none of that name."""
        ...


def is_extended_resource_name(name: str) -> bool:
    """True if kubelet takes ``name`` as an extended resource: fully qualified and not of ``kubernetes.io``.

    As Kubernetes' ``IsExtendedResourceName``: its quota form ``requests.<name>`` must be a qualified name too.
    """
    if _QUALIFIED_NAME.fullmatch(f"requests.{name}") is None or _QUALIFIED_NAME.fullmatch(name) is None:
        return False
    domain = name.split("/", 1)[0]
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."))
