"""Has the node rebooted in the way that the administrator has chosen."""

from collections.abc import Callable, Sequence

from tessera.agent.base.host import SENTINEL, SYSTEMCTL, RunOnHost
from tessera.agent.base.node_objects import ApiMirror
from tessera.api.names import REBOOT_REQUESTED
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import NODES

#: Field manager of the annotation by which a reboot is asked for.
MANAGER = "tessera-agent-reboot"


class NodeReboot:
    """Reboots the node, or asks for that.

    Args:
        host: runs commands on the host; ``None`` with simulated cards.
        client: the API server.
        node: the Node object, with its boot id.
        repairs: gives what the administrator lets Tessera do; a layout's reboot is by systemd if that names no way.
    """

    def __init__(self, host: RunOnHost | None, client: Client, node: ApiMirror, repairs: Callable[[], Repairs]) -> None:
        self._host = host
        self._client = client.with_field_manager(MANAGER)
        self._node = node
        self._repairs = repairs

    async def __call__(self) -> None:
        """Returns once the request is made; the machine goes down after that.

        Raises:
            OSError: it is refused.
        """
        repairs = self._repairs()
        match repairs.reboot:
            case RebootWay.ANNOTATION:
                await self._annotate()
            case RebootWay.COMMAND:
                await self._run(repairs.reboot_command)
            case RebootWay.SENTINEL:
                await self._run(SENTINEL)
            case _:
                await self._run(SYSTEMCTL)

    async def _run(self, command: Sequence[str]) -> None:
        if self._host is None:
            raise OSError("no machine is rebooted for simulated cards")
        await self._host(command)

    async def _annotate(self) -> None:
        """Asks the controller to set the administrator's annotation, until the node has booted."""
        body = {"metadata": {"annotations": {REBOOT_REQUESTED: self._node.boot_id()}}}
        try:
            await self._client.apply(NODES, self._node.node_name, body)
        except (ApiError, ConnectionError, TimeoutError) as error:
            raise OSError(f"the Node cannot be annotated: {error}") from error
