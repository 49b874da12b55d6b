"""Claims that kube-scheduler placed: what the controller remembers of their pods."""

from functools import partial
from typing import Any

import pytest
from tests.support.claim_cluster import ClaimCluster, request
from tests.support.slicer_cluster import CheckedSlicer

from tessera.api.names import NodeName
from tessera.claims.controller.scheduler_claims import SchedulerClaims
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import KINDS, Slicer
from tessera.controller.slicing.state.events import InstasliceDeleted


class SchedulerCluster(ClaimCluster):
    """A cluster where kube-scheduler's allocator places claims."""

    def make_slicer(self) -> Slicer:
        return CheckedSlicer(self.reserve_after, kinds=(*KINDS, partial(SchedulerClaims, driver=self.driver)))

    def remembered(self) -> set[str]:
        """Pods of which the kind remembers the claims."""
        kind: Any = self.slicer.kinds.by_name["claims"]
        return set(kind._keys)

    def running(self, name: str, start: int) -> PodInfo:
        """A pod on node n1 whose claim has a slice there."""
        key = self.claim(f"claim-of-{name}", request("x", "mig-1g.5gb.tessera.dev"))
        given = {"request": "x", "driver": self.driver, "pool": "n1", "device": f"gpu-0-mig-1g5gb-19-{start}"}
        field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
        place = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        users = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
        allocation = {"devices": {"results": [given]}, "nodeSelector": place}
        self.patch_claim(key, {"status": {"allocation": allocation, "reservedFor": users}})
        return self.user(name, key, node=NodeName("n1"))

    def lose_object(self) -> None:
        """The Instaslice object of n1 is deleted."""
        del self.objects["n1"]
        self.slicer.handle(InstasliceDeleted(NodeName("n1")))


@pytest.mark.parametrize("object_first", [False, True])
def test_no_pod_is_remembered_after_both_it_and_the_object_of_its_node_are_gone(*, object_first: bool) -> None:
    cluster = SchedulerCluster()
    cluster.claim_node("n1")
    pods = [cluster.running(f"p{start}", start) for start in range(3)]
    cluster.settle()
    assert [len(cluster.where(each)) for each in pods] == [1, 1, 1]
    if object_first:
        cluster.lose_object()
        cluster.run()
    for each in pods:
        cluster.remove(each)
    cluster.run()
    assert object_first or cluster.remembered() == {"uid-p0", "uid-p1", "uid-p2"}
    if not object_first:
        cluster.lose_object()
    cluster.claim_node("n2")  # any node's next change
    cluster.run()
    assert cluster.remembered() == set()


def test_a_pod_that_is_gone_is_remembered_until_its_record_is() -> None:
    cluster = SchedulerCluster()
    cluster.claim_node("n1")
    pod = cluster.running("p", 0)
    cluster.settle()
    cluster.remove(pod)
    cluster.run()
    assert cluster.remembered() == {"uid-p"}
    cluster.patch_claim("default/claim-of-p", {"status": {"allocation": None, "reservedFor": []}})
    cluster.settle()
    assert cluster.empty()
    assert cluster.remembered() == set()
