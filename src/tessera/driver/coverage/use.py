"""Which images a cluster uses now: what kernels that are to come are held against. Pure."""

from collections.abc import Mapping

import msgspec

from tessera.api.driver.policy import DriverPolicy
from tessera.driver.nodes.node_facts import NodeFacts
from tessera.driver.policies.policy_selection import Governance
from tessera.driver.pool import PoolKey


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What is in use.

    Attributes:
        pools: of nodes whose driver Tessera brings, each with the policy that governs them.
        everywhere: policies that also govern nodes of systems that are not there yet.
    """

    pools: tuple[tuple[PoolKey, DriverPolicy], ...] = ()
    everywhere: tuple[DriverPolicy, ...] = ()


def use_of(governance: Governance, nodes: Mapping[str, NodeFacts]) -> Use:
    """What follows from the nodes and who governs them."""
    found: dict[tuple[PoolKey, str], tuple[PoolKey, DriverPolicy]] = {}
    for name, policy in governance.nodes.items():
        facts = nodes.get(name)
        if facts is not None and facts.pool is not None and not facts.preinstalled and not facts.opted_out:
            found[facts.pool, f"{policy.kind}/{policy.name}"] = (facts.pool, policy)
    cluster = governance.cluster
    return Use(
        pools=tuple(found[key] for key in sorted(found)),
        everywhere=() if cluster is None or cluster.use_driver_crd else (cluster,),
    )
