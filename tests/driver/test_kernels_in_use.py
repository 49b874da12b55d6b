"""Pools and policies that next kernels are compared with: those whose driver Tessera brings."""

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.driver.next_kernels import KernelsInUse, kernels_in_use
from tessera.driver.node_facts import DriverNodeFacts
from tessera.driver.policies import PolicySelection
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource

POOL = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
POLICY = DriverPolicy(kind="ClusterPolicy", name="p", source=ImageSource(version="525.125.06"))


def node(name: str, pool: PoolKey | None = POOL, **said: str) -> DriverNodeFacts:
    return DriverNodeFacts(name=name, uid=name, is_gpu=True, pool=pool, **said)  # type: ignore[arg-type]


def use(*nodes: DriverNodeFacts, policy: DriverPolicy = POLICY) -> KernelsInUse:
    selection = PolicySelection(cluster=policy, nodes={each.name: policy for each in nodes})
    return kernels_in_use(selection, {each.name: each for each in nodes})


def test_a_pool_counts_once_under_a_policy() -> None:
    assert use(node("a"), node("b")).pools == ((POOL, POLICY),)


def test_nodes_that_tessera_brings_no_driver_use_no_image() -> None:
    others = (node("a", preinstalled="by a label"), node("b", opted_out="by a label"), node("c", pool=None))
    assert use(*others).pools == ()


def test_a_cluster_policy_governs_systems_to_come_unless_it_leaves_them_to_other_objects() -> None:
    assert use().everywhere == (POLICY,)
    assert use(policy=msgspec.structs.replace(POLICY, use_driver_crd=True)).everywhere == ()
