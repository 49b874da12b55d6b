"""The node is rebooted in the way that the administrator has chosen."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.api_clients import in_process_client

from tessera.agent.base.host import NodeReboot
from tessera.api.names import REBOOT_REQUESTED
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.clock import LoopClock
from tessera.kube.resources import NODES
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

COMMAND = ("/usr/local/bin/reboot-node", "--drain")


def reboot(repairs: Repairs, *, simulated: bool = False) -> tuple[list[Sequence[str]], dict[str, str]]:
    """The commands that ran on the host, and the annotations of the Node."""
    ran: list[Sequence[str]] = []

    async def host(command: Sequence[str]) -> None:
        ran.append(command)

    async def played() -> dict[str, str]:
        clock = LoopClock(1_700_000_000.0)
        client = in_process_client(ApiServer(clock), clock, "admin", "system:masters", "system:authenticated")
        await client.create(NODES.as_dicts(), {"metadata": {"name": "n1"}})
        mirror: Any = SimpleNamespace(node_name="n1", boot_id=lambda: "boot-1")
        await NodeReboot(None if simulated else host, client, mirror, lambda: repairs)()
        return dict((await client.get(NODES, "n1")).metadata.annotations)

    return ran, run_virtual(played())


@pytest.mark.parametrize(
    ("way", "command"),
    [
        (RebootWay.NONE, ("systemctl", "reboot")),
        (RebootWay.SYSTEMCTL, ("systemctl", "reboot")),
        (RebootWay.SENTINEL, ("touch", "/var/run/reboot-required")),
        (RebootWay.COMMAND, COMMAND),
    ],
)
def test_a_command_runs_on_the_host(way: RebootWay, command: Sequence[str]) -> None:
    assert reboot(Repairs(reboot=way, reboot_command=COMMAND)) == ([command], {})


def test_an_annotation_names_the_boot_that_is_to_end_and_runs_nothing() -> None:
    repairs = Repairs(reboot=RebootWay.ANNOTATION, reboot_annotation="example.com/reboot")
    assert reboot(repairs, simulated=True) == ([], {REBOOT_REQUESTED: "boot-1"})


def test_no_machine_is_rebooted_for_simulated_cards() -> None:
    with pytest.raises(OSError, match="no machine is rebooted for simulated cards"):
        reboot(Repairs(reboot=RebootWay.SENTINEL), simulated=True)
