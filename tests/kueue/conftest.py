"""Clusters with Kueue and Tessera.

Without more, the lab on virtual time with the stand-in of Kueue. ``TESSERA_KUEUE_KUBECONFIG`` names the kubeconfig of a
cluster with the real Kueue, configured by ``tessera kueue config --models all``, with the pod integration, and with
Tessera on one node with an A100-40GB at least; tests that need the stand-in's settings are then skipped. That cluster
is for these tests alone, one at a time: nothing else is queued in it, and its administrator may impersonate users.
``TESSERA_KUEUE_VERSION`` is v1beta1 for Kueue 0.14 and older.
"""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from tests.cluster.conftest import booted_labs, in_lab, node_files, valid_states
from tests.support.kueue.cluster import KueueCluster
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.cli.base.kubeconfig import load_config
from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.http import HttpTransport
from tessera.kueue.configuration import make_configuration
from tessera.kueue.objects import Version
from tessera.mig.models import model_by_short_name
from tessera_lab.kueue.stand_in import StandIn

__all__ = ["booted_labs", "in_lab", "node_files", "valid_states", "with_kueue"]

A100 = model_by_short_name("A100-40GB").profile_names
Story = Callable[[KueueCluster], Awaitable[None]]


@pytest.fixture
def with_kueue(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Plays a story in a cluster with Kueue.

    Its arguments beside the story are those of the stand-in (``version``, ``resources``, ``ready_timeout``,
    ``webhooks``, ``hostname``), ``order`` (the name of Kueue's webhook configuration) and those of the lab
    (``nodes``, ``mig_config``).
    """

    def play(story: Story, **settings: Any) -> None:
        given = os.environ.get("TESSERA_KUEUE_KUBECONFIG")
        if given:
            own = {"version": os.environ.get("TESSERA_KUEUE_VERSION", "v1beta2"), "order": "kueue-mutating-webhook"}
            if not settings.items() <= own.items():
                pytest.skip("the cluster's Kueue has its own settings")
            asyncio.run(_elsewhere(given, story))
        else:
            _in_lab(request.getfixturevalue("in_lab"), story, **settings)

    return play


def _in_lab(
    in_lab: InLab,
    story: Story,
    *,
    version: Version = "v1beta2",
    resources: Any = None,
    order: str = "kueue-mutating-webhook",
    nodes: str = "2xA100-40GB",
    mig_config: str = "dynamic",
    **settings: Any,
) -> None:
    charges = make_configuration(A100, version)["resources"] if resources is None else resources

    async def scenario(lab: VirtualLab) -> None:
        stand_in = StandIn(lab.client, lab.clock, resources=charges, version=version, **settings)
        await stand_in.install(lab.cluster.reviewers, order)
        reconciling = asyncio.create_task(stand_in.run())
        try:
            await story(KueueCluster(lab.client, lab.clock, version, "team-a", lab.cluster.server))
            assert not reconciling.done()
        finally:
            reconciling.cancel()
            await asyncio.wait([reconciling])

    in_lab(scenario, nodes=nodes, mig_config=mig_config)


async def _elsewhere(kubeconfig: str, story: Story) -> None:
    clock = SystemClock()
    transport = HttpTransport(load_config(clock=clock, kubeconfig=kubeconfig))
    client = Client(transport, field_manager="tessera-kueue-tests", clock=clock)
    version = cast(Version, os.environ.get("TESSERA_KUEUE_VERSION", "v1beta2"))
    cluster = KueueCluster(client, clock, version, f"tessera-kueue-{uuid.uuid4().hex[:8]}", transport)
    try:
        await story(cluster)
    finally:
        await cluster.close()
        await client.close()
