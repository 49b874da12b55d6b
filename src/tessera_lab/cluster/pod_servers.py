"""What listens in the pods of a cluster: simulated servers, and Tessera's own processes on their pods' addresses."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from tessera.kube.client.requests import Request, Response
from tessera_lab.apiserver.interfaces import ObjectReader, PodPeer
from tessera_lab.apiserver.request.server_state import PODS
from tessera_lab.kubelet.node.node import SimulatedNode
from tessera_lab.kubelet.servers.behaviour import HTTP


class ClusterServers:
    """See :class:`~tessera_lab.apiserver.interfaces.PodServers`.

    Args:
        nodes: the nodes by name.
        pods: the stored pods.
        network: first bytes of the addresses on which pods of this lab listen, ``127.9``; empty if none does.
    """

    def __init__(self, nodes: Mapping[str, SimulatedNode], pods: ObjectReader, network: str) -> None:
        self._nodes = nodes
        self._pods = pods
        self._network = network

    async def connect(self, namespace: str, pod: str, port: int) -> PodPeer:
        """Opens a connection to a port of a pod.

        Raises:
            OSError: nothing listens there.
        """
        try:
            node, uid = self._place(namespace, pod)
            address = node.pods.address(uid)
        except LookupError:
            raise ConnectionRefusedError("the pod does not run") from None
        with suppress(LookupError):
            return await node.find_server(uid, port).connect()
        if self._network and address.startswith(f"{self._network}."):
            with suppress(OSError):  # no process of Tessera's own listens either
                return await asyncio.open_connection(address, port)
        hint = f"a pod of the lab serves what its annotation {HTTP} declares"
        raise ConnectionRefusedError(f"dial tcp {address}:{port}: connection refused; {hint}")

    async def answer(self, namespace: str, pod: str, port: int, request: Request) -> Response:
        """Sends a request to a simulated server.

        Raises:
            LookupError: none listens at that port of the pod.
        """
        node, uid = self._place(namespace, pod)
        return await node.find_server(uid, port).answer(request)

    def _place(self, namespace: str, pod: str) -> tuple[SimulatedNode, str]:
        """The node of a pod, and the pod's UID. LookupError: it has none here."""
        found = self._pods.get(PODS, namespace, pod) or {}
        node = self._nodes[(found.get("spec") or {}).get("nodeName", "")]
        return node, found["metadata"]["uid"]
