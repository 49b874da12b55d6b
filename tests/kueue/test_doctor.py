"""``tessera doctor`` in a cluster with Kueue: it reads Kueue's ConfigMap and queues as they are stored."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import yaml
from tests.kueue.conftest import A100
from tests.support.kueue.cluster import KueueCluster

from tessera.doctor.examination import examine
from tessera.doctor.facts import Verdict
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS, DEPLOYMENTS
from tessera.kueue.configuration import make_configuration, write_configuration
from tessera.kueue.objects import CONFIG_KEY, CONFIG_MAP, CONFIG_NAMESPACE, MANAGER, VERSIONS, Version


@asynccontextmanager
async def kept_configuration(client: Client) -> AsyncIterator[None]:
    """Stores what a cluster's own Kueue reads when it starts again."""
    try:
        before = (await client.get(CONFIGMAPS, CONFIG_MAP, CONFIG_NAMESPACE)).data[CONFIG_KEY]
    except NotFound:  # the stand-in of these tests has none
        yield
        return
    try:
        yield
    finally:
        await store(client, before)


async def store(client: Client, text: str) -> None:
    """Stores a Configuration."""
    data = {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text}}
    await client.apply(CONFIGMAPS.as_dicts(), CONFIG_MAP, data, CONFIG_NAMESPACE)


async def found(cluster: KueueCluster, text: str) -> dict[str, Verdict]:
    """The verdicts about Kueue with this Configuration."""
    await store(cluster.client, text)
    findings = await examine(cluster.client, cluster.clock)
    return {each.check: each.verdict for each in findings if each.check.startswith("kueue")}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_stored_configuration_and_queues_are_examined(with_kueue: Callable[..., None], version: Version) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20, checked=True)
        right = {**make_configuration(A100, version), "integrations": {"frameworks": ["pod"]}}
        await cluster.until(cluster.is_checked, "Tessera answers the check")
        nothing = {**right, "resources": {"excludeResourcePrefixes": ["nvidia.com/", "instaslice.redhat.com/"]}}
        async with kept_configuration(cluster.client):
            assert await found(cluster, write_configuration(right)) == {"kueue-charges": Verdict.OK}
            assert await found(cluster, yaml.safe_dump(nothing)) == {"kueue-charges": Verdict.ERROR}
            assert await found(cluster, "a: [") == {"kueue-charges": Verdict.UNKNOWN}

    with_kueue(story, version=version)


def test_the_release_is_that_of_kueues_deployment(with_kueue: Callable[..., None]) -> None:
    """In the lab alone: elsewhere the Deployment is that of the real Kueue."""
    right = {**make_configuration(A100, "v1beta2"), "integrations": {"frameworks": ["pod"]}}

    async def runs(cluster: KueueCluster, release: str) -> None:
        pod = {"containers": [{"name": "proxy", "image": "proxy:v1.2.3"}, {"name": "manager", "image": release}]}
        template = {"metadata": {"labels": {"app": "kueue"}}, "spec": pod}
        spec = {"replicas": 0, "selector": {"matchLabels": {"app": "kueue"}}, "template": template}
        body = {"metadata": {"name": MANAGER}, "spec": spec}
        await cluster.client.apply(DEPLOYMENTS.as_dicts(), MANAGER, body, CONFIG_NAMESPACE)

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        assert "kueue-ready-timeout" in await found(cluster, write_configuration(right))
        await runs(cluster, "registry.k8s.io/kueue/kueue:v0.18.1")
        assert "kueue-ready-timeout" not in await found(cluster, write_configuration(right))
        await runs(cluster, "registry.k8s.io/kueue/kueue:v0.19.0")
        assert "kueue-ready-timeout" in await found(cluster, write_configuration(right))

    with_kueue(story, resources=right["resources"])
