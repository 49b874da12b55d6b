"""Advice from what Tessera itself recorded of nodes that an autoscaler made, in a whole cluster on virtual time."""

import pytest
from tests.support.virtual_lab import ENTRYPOINT

from tessera.cli.autoscaler.cluster_facts import ClusterFacts, read_cluster
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.resources import PODS
from tessera.provisioning.start_times import GroupTimes
from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
from tessera_lab.experiments import clusters
from tessera_lab.experiments.clusters import PUBLIC
from tessera_lab.experiments.measuring import WORKLOAD
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual


@pytest.mark.parametrize("labelled", [True, False])
def test_records_and_labels_speak_of_the_same_group(labelled: bool) -> None:
    async def main() -> tuple[tuple[GroupTimes, ...], ClusterFacts]:
        async with (
            clusters.start_tessera(CostModel(), cards=False, seed=0, make=ENTRYPOINT) as world,
            world.run_autoscaler(AutoscalerTimers(), labelled=labelled, tainted=True),
        ):
            await world.client.create(CLUSTER_POLICIES, PUBLIC.policy())
            await world.clock.sleep(60)
            await world.client.create(PODS.as_dicts(), {"metadata": {"name": "a"}, "spec": dict(WORKLOAD)}, "default")
            await world.clock.sleep(600)
            return await read_cluster(world.client)

    (told,), facts = run_virtual(main())
    assert told.group == "gpu"
    assert told.simulated
    (provision,), (startup,), (ready,) = told.provision, told.startup, told.ready
    # Without the label it is not known before features are discovered that there is a card.
    assert 30 < ready < startup < provision < (300 if labelled else 330)
    assert facts.label_facts("gpu").present is labelled
