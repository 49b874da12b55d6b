"""``tessera doctor`` in a cluster with Kueue: it reads Kueue's ConfigMap and queues as they are stored."""

from collections.abc import Callable

import pytest
import yaml
from tests.kueue.conftest import A100
from tests.support.kueue.cluster import KueueCluster

from tessera.doctor.examination import examine
from tessera.doctor.findings import Verdict
from tessera.kube.resources import CONFIGMAPS
from tessera.kueue.configuration import make_configuration, write_configuration
from tessera.kueue.names import CONFIG_KEY, CONFIG_MAP, CONFIG_NAMESPACE, VERSIONS, Version


async def found(cluster: KueueCluster, text: str) -> dict[str, Verdict]:
    """The verdicts about Kueue with this Configuration."""
    data = {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text}}
    await cluster.client.apply(CONFIGMAPS.as_dicts(), CONFIG_MAP, data, CONFIG_NAMESPACE)
    findings = await examine(cluster.client, cluster.clock)
    return {each.check: each.verdict for each in findings if each.check.startswith("kueue")}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_stored_configuration_and_queues_are_examined(with_kueue: Callable[..., None], version: Version) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20, checked=True)
        right = {**make_configuration(A100, version), "integrations": {"frameworks": ["pod"]}}
        await cluster.until(cluster.is_checked, "Tessera answers the check")
        assert await found(cluster, write_configuration(right)) == {"kueue-charges": Verdict.OK}
        nothing = {**right, "resources": {"excludeResourcePrefixes": ["nvidia.com/", "instaslice.redhat.com/"]}}
        assert await found(cluster, yaml.safe_dump(nothing)) == {"kueue-charges": Verdict.ERROR}
        assert await found(cluster, "a: [") == {"kueue-charges": Verdict.UNKNOWN}

    with_kueue(story, version=version)
