"""Tokens of containers that run for real: renewed before they end, and when the server refuses one."""

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import SERVICE_ACCOUNTS
from tessera_lab.cluster.cluster import ContainerToken
from tessera_lab.kubelet.context import PodIdentity

HOUR = 3600.0


async def _token(lab: ControlPlaneLab) -> ContainerToken:
    """A token for a container of a pod that exists; tokens live for an hour."""
    await lab.api.create(SERVICE_ACCOUNTS.as_dicts(), {"metadata": {"name": "robot"}}, "default")
    pod = await lab.pod("p", "sleep", "infinity", serviceAccountName="robot")
    identity = PodIdentity(namespace="default", name="p", uid=pod["metadata"]["uid"], service_account="robot")
    return ContainerToken(lab.client("kubelet"), identity, lab.clock)


async def test_a_token_is_kept_for_four_fifths_of_its_life(lab: ControlPlaneLab) -> None:
    token = await _token(lab)
    first = await token.current()
    assert first.authorization.startswith("Bearer ")
    await lab.clock.sleep(0.79 * HOUR)
    assert await token.current() == first
    await lab.clock.sleep(0.02 * HOUR)
    assert await token.current() != first


async def test_a_refused_token_is_replaced(lab: ControlPlaneLab) -> None:
    token = await _token(lab)
    first = await token.current()
    await lab.clock.sleep(1)
    assert token.reject(first)
    second = await token.current()
    assert second != first
    assert token.reject(first), "the one in use is newer: try again with it"
    assert await token.current() == second
