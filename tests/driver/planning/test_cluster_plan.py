"""Decisions over all nodes: which sets there are, which node has which, and what everybody is told."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.searching import examples

from tessera.api.nodes.node_marks import DriverPhase, DriverStatus, DriverStrategy
from tessera.clock import rfc3339
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution, TriedReference
from tessera.driver.node_facts import CHANGING, AgentsWord, DriverNodeFacts, UpgradeRecord, encode_upgrade_record
from tessera.driver.node_status import encode_status, read_status
from tessera.driver.planning.cluster_plan import plan_cluster
from tessera.driver.planning.interface import (
    ClusterPlan,
    ClusterSnapshot,
    CreateSet,
    CreateValidationPod,
    DeletePod,
    DeleteSet,
    DeleteToolkit,
    ExistingSet,
    Instruction,
    LabelNode,
    WriteCondition,
    WriteStatus,
)
from tessera.driver.pod_facts import DriverPod, DriverPodProgress, NodePods, ValidationPod
from tessera.driver.policies import PolicySelection
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource, OperandSettings
from tessera.kube.resources import Condition

SOURCE = ImageSource(repository="nvcr.io/nvidia", image="driver", version="525.125.06")
K1 = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
K2 = msgspec.structs.replace(K1, kernel="5.15.0-70-generic")


def pool(os_id: str, version: str, kernel: str, architecture: str, page_kib: int = 4) -> PoolKey:
    return PoolKey(os_id=os_id, os_version=version, kernel=kernel, architecture=architecture, page_kib=page_kib)


class Cluster:
    """Nodes, DaemonSets, pods and a registry as plain values; whoever asks for an image gets an answer at once."""

    def __init__(self) -> None:
        self.policy = DriverPolicy(
            kind="ClusterPolicy", name="p", use_precompiled=True, source=SOURCE, toolkit=OperandSettings(enabled=False)
        )
        self.managed = True
        self.toolkit = False
        self.nodes: dict[str, DriverNodeFacts] = {}
        self.sets: dict[str, ExistingSet] = {}
        self.pods: dict[str, NodePods] = {}
        self.images: dict[tuple[ImageKind, PoolKey | None], str] = {(ImageKind.BUILDER, None): "b"}
        self.silent = False
        self.asked: dict[ImageQuery, Resolution] = {}
        self.unpullable: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.users: set[str] = set()
        self.now = 1_000_000.0
        self.decision = ClusterPlan()

    def node(self, name: str, of: PoolKey | None = K1, **fields: Any) -> None:
        self.nodes[name] = DriverNodeFacts(name=name, uid=f"uid-{name}", is_gpu=True, pool=of, boot_id="b0", **fields)
        self.pods[name] = NodePods()

    def change(self, name: str, **fields: Any) -> None:
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], **fields)

    def has(self, kind: ImageKind, of: PoolKey | None = K1, digest: str = "a") -> None:
        self.images[kind, of] = digest

    def resolve(self, query: ImageQuery) -> Resolution:
        digest = self.images.get((query.kind, query.pool)) or self.images.get((query.kind, None))
        name = f"{query.source.repository}/{query.source.image}:{query.source.version}-{query.kind.value}"
        if self.silent:
            tried = (TriedReference(reference=name, outcome=Outcome.UNREACHABLE, text=f"{name}: no answer"),)
            return Resolution(outcome=Outcome.UNREACHABLE, tried=tried)
        if digest is None:
            tried = (TriedReference(reference=name, outcome=Outcome.NOT_FOUND, text=f"{name}: not found"),)
            return Resolution(outcome=Outcome.NOT_FOUND, tried=tried)
        full = f"{query.pool.digest}{query.source.version.replace('.', '')}{digest}"
        return Resolution(outcome=Outcome.FOUND, reference=name, digest=f"sha256:{full}", tag="t")

    def ask_again(self) -> None:
        """All answers are asked for anew."""
        self.asked = {query: self.resolve(query) for query in self.asked}

    def snapshot(self) -> ClusterSnapshot:
        selection = PolicySelection()
        if self.managed:
            selection = PolicySelection(cluster=self.policy, nodes=dict.fromkeys(self.nodes, self.policy))
        return ClusterSnapshot(
            nodes=self.nodes,
            pods=self.pods,
            selection=selection,
            sets=self.sets,
            answers=self.asked,
            unpullable=self.unpullable,
            failed_sets=self.failed,
            nodes_in_use=frozenset(self.users),
            has_toolkit=self.toolkit,
            now=self.now,
        )

    def decide(self) -> list[Instruction]:
        """Rounds of decisions until nothing more has to be asked."""
        while True:
            self.decision = plan_cluster(self.snapshot())
            missing = [query for query in self.decision.lookups if query not in self.asked]
            if not missing:
                return list(self.decision.instructions)
            self.asked |= {query: self.resolve(query) for query in missing}

    def act(self, *instructions: Instruction) -> None:
        """Applies the instructions as the API server does."""
        for one in instructions:
            match one:
                case CreateSet(set=made):
                    self.sets[made.id] = ExistingSet(set=made, uid=f"ds-{made.id}")
                case DeleteSet(name=name):
                    self.sets = {key: each for key, each in self.sets.items() if each.set.name != name}
                case LabelNode(node=node, set=set_):
                    self.change(node, driver_set=set_)
                case WriteStatus(node=node, status=status):
                    self.change(node, status_annotation="" if status is None else encode_status(status))
                case WriteCondition(node=node, condition=shown):
                    self.change(node, condition=None if shown is None else msgspec.convert(shown, Condition))
                case CreateValidationPod(node=node, set=set_):
                    proof = ValidationPod(name="v", uid=f"v-{self.now}", set=set_, created=self.now)
                    self.pods[node] = msgspec.structs.replace(self.pods[node], validation=proof)
                case DeletePod(uid=uid):
                    for name, pods in self.pods.items():
                        if pods.validation is not None and pods.validation.uid == uid:
                            self.pods[name] = msgspec.structs.replace(pods, validation=None)

    def kubelet(self, name: str, *, broken: frozenset[str] = frozenset()) -> None:
        """One step of a node's pods: they come, pull, start, become ready, are validated; foreign ones go."""
        self.now += 1
        facts, pods = self.nodes[name], self.pods[name]
        current = self.sets.get(facts.driver_set)
        drivers = tuple(each for each in pods.drivers if current is not None and each.set == current.set.id)
        if current is not None:
            drivers = (self._next(drivers[0] if drivers else None, current, broken),)
        proof = pods.validation
        if proof is not None:
            proof = msgspec.structs.replace(proof, succeeded=True)
        self.pods[name] = msgspec.structs.replace(pods, drivers=drivers, validation=proof)

    def _next(self, pod: DriverPod | None, of: ExistingSet, broken: frozenset[str]) -> DriverPod:
        fresh = DriverPod(name=of.set.name, set=of.set.id, progress=DriverPodProgress.PULLING)
        if pod is None:
            return fresh
        if of.set.image in broken:
            text = ((of.set.image, "ErrImagePull"),)
            self.unpullable[of.set.image] = "ErrImagePull"
            return msgspec.structs.replace(
                fresh, progress=DriverPodProgress.FAILED, unpullable=text, fault="cannot pull"
            )
        after = {
            DriverPodProgress.PULLING: DriverPodProgress.STARTING,
            DriverPodProgress.FAILED: DriverPodProgress.PULLING,
        }
        progress = after.get(pod.progress, DriverPodProgress.READY)
        ready = pod.ready_since or self.now
        return msgspec.structs.replace(
            fresh, progress=progress, ready_since=ready * (progress is DriverPodProgress.READY)
        )

    def settle(self, rounds: int = 12) -> None:
        """Decides, acts and lets kubelets work until all is at rest."""
        for _ in range(rounds):
            self.act(*self.decide())
            for name in self.nodes:
                self.kubelet(name)
        self.act(*self.decide())

    def reboot(self, name: str, into: PoolKey, boot: str) -> None:
        """The node is up again: its pods are known, and none runs yet."""
        pods = self.pods[name]
        down = tuple(
            msgspec.structs.replace(each, progress=DriverPodProgress.PULLING, ready_since=0.0) for each in pods.drivers
        )
        self.pods[name] = msgspec.structs.replace(pods, drivers=down)
        self.change(name, pool=into, boot_id=boot)

    def told(self, name: str) -> DriverStatus:
        found = read_status(self.nodes[name].status_annotation)
        assert found is not None
        return found

    def set_of(self, name: str) -> ExistingSet:
        return self.sets[self.nodes[name].driver_set]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_one_round_gives_covered_nodes_precompiled_drivers_and_builds_the_others(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.node("b", K2)
    cluster.act(*cluster.decide())
    assert cluster.told("a").strategy is DriverStrategy.PRECOMPILED
    assert cluster.told("b").strategy is DriverStrategy.BUILT
    assert [each.strategy for each in cluster.told("b").rejected] == [
        DriverStrategy.PREINSTALLED,
        DriverStrategy.PRECOMPILED,
        DriverStrategy.PRECOMPILED_BRANCH,
    ]
    assert "not found" in cluster.told("b").rejected[1].reason
    assert cluster.set_of("a").set.pool == K1
    assert cluster.set_of("b").set.pool == K2


def test_an_image_that_comes_later_is_offered_and_takes_nothing_away(cluster: Cluster) -> None:
    cluster.node("b", K2)
    cluster.settle()
    assert cluster.told("b").phase is DriverPhase.READY
    built = cluster.nodes["b"].driver_set
    cluster.has(ImageKind.PRECOMPILED, K2)
    cluster.ask_again()
    cluster.settle()
    assert cluster.nodes["b"].driver_set == built
    assert cluster.told("b").phase is DriverPhase.READY
    assert cluster.told("b").offered.startswith("precompiled: nvcr.io/nvidia/driver@sha256:")
    wanted = cluster.decision.desired["b"]
    assert wanted.when_idle
    assert cluster.sets[wanted.set].set.strategy is DriverStrategy.PRECOMPILED


def test_an_offer_is_taken_at_the_next_boot(cluster: Cluster) -> None:
    cluster.node("b", K2)
    cluster.settle()
    cluster.has(ImageKind.PRECOMPILED, K2)
    cluster.ask_again()
    cluster.settle()
    cluster.reboot("b", K2, "b1")
    cluster.settle()
    assert cluster.told("b").strategy is DriverStrategy.PRECOMPILED
    assert cluster.told("b").offered == ""
    assert list(cluster.sets) == [cluster.nodes["b"].driver_set]


def test_a_controller_that_comes_after_a_boot_disturbs_no_driver_that_serves_again(cluster: Cluster) -> None:
    cluster.node("b", K2)
    cluster.settle()
    built = cluster.nodes["b"].driver_set
    cluster.has(ImageKind.PRECOMPILED, K2)
    cluster.ask_again()
    cluster.change("b", boot_id="b1")  # booted, came up, and was validated while nobody looked
    cluster.settle()
    assert cluster.nodes["b"].driver_set == built


def test_five_kinds_of_nodes_are_five_pools_with_five_images_and_a_node_without_facts_stands_alone() -> None:
    kernel = "5.14.0-284.54.1.el9_2"
    pools = {
        "jammy": pool("ubuntu", "22.04", "6.8.0-45-generic", "amd64"),
        "noble": pool("ubuntu", "24.04", "6.8.0-45-generic", "amd64"),
        "x86": pool("rhcos", "4.15", f"{kernel}.x86_64", "amd64"),
        "arm": pool("rhcos", "4.15", f"{kernel}.aarch64", "arm64"),
        "arm64k": pool("rhcos", "4.15", f"{kernel}.aarch64+64k", "arm64", 64),
    }
    cluster = Cluster()
    for name, each in pools.items():
        cluster.node(name, each)
        cluster.has(ImageKind.PRECOMPILED, each)
    cluster.node("blank", None, missing=("the operating system is missing",))
    cluster.settle()
    assert {name: cluster.set_of(name).set.pool for name in pools} == pools
    assert len({cluster.set_of(name).set.image for name in pools}) == 5
    assert all(cluster.told(name).phase is DriverPhase.READY for name in pools)
    assert cluster.told("blank").phase is DriverPhase.BLOCKED
    assert "the operating system is missing" in cluster.told("blank").reason


def test_a_forced_boot_into_a_kernel_without_an_image_is_answered_by_building_at_once(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.settle()
    cluster.reboot("a", K2, "b1")
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set == CHANGING  # the pod of the kernel before goes first
    cluster.settle()
    assert cluster.told("a").strategy is DriverStrategy.BUILT
    assert cluster.set_of("a").set.pool == K2
    assert cluster.told("a").phase is DriverPhase.READY
    assert len(cluster.sets) == 1


def test_the_set_that_comes_next_stays_while_the_pod_of_the_one_before_is_ending(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.settle()
    cluster.reboot("a", K2, "b1")
    cluster.act(*cluster.decide())
    for _ in range(3):  # the old pod does not go
        assert cluster.nodes["a"].driver_set == CHANGING
        made = [each for each in cluster.decide() if isinstance(each, CreateSet | DeleteSet)]
        cluster.act(*made)
        assert {each.set.pool for each in cluster.sets.values()} == {K2}
        assert not [each for each in made if isinstance(each, CreateSet)]


def test_a_set_that_was_named_a_moment_ago_gives_way_like_one_whose_pod_is_seen(cluster: Cluster) -> None:
    """Its pod may be on its way, and would meet the next one's."""
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.act(*cluster.decide())
    named = cluster.nodes["a"].driver_set
    assert named in cluster.sets
    cluster.policy = msgspec.structs.replace(
        cluster.policy, source=msgspec.structs.replace(SOURCE, version="535.54.03")
    )
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set == CHANGING
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set in cluster.sets.keys() - {named}


def test_without_an_image_and_a_builder_nothing_is_made_and_the_node_says_why(cluster: Cluster) -> None:
    cluster.images.clear()
    cluster.node("a", K1)
    cluster.settle()
    assert not cluster.sets
    assert cluster.nodes["a"].driver_set == ""
    assert cluster.told("a").phase is DriverPhase.BLOCKED
    assert cluster.nodes["a"].condition is not None
    assert cluster.nodes["a"].condition.reason == "Blocked"


def test_an_image_that_cannot_be_pulled_is_left_for_the_next_way(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.act(*cluster.decide())
    broken = frozenset({cluster.set_of("a").set.image})
    for _ in range(8):
        cluster.kubelet("a", broken=broken)
        cluster.act(*cluster.decide())
    assert cluster.told("a").strategy is DriverStrategy.BUILT
    assert any("cannot be pulled" in each.reason for each in cluster.told("a").rejected)


def test_a_driver_that_ends_again_and_again_is_left_for_another_one_once_there_is_one(cluster: Cluster) -> None:
    cluster.node("b", K2)
    cluster.act(*cluster.decide())
    built = cluster.nodes["b"].driver_set
    ends = DriverPod(
        name="x", set=built, progress=DriverPodProgress.STARTING, started=1.0, fault="container x ended 12 times"
    )
    cluster.pods["b"] = NodePods(drivers=(ends,))
    cluster.act(*cluster.decide())
    assert (cluster.nodes["b"].driver_set, cluster.told("b").phase) == (built, DriverPhase.FAILED)
    cluster.has(ImageKind.PRECOMPILED, K2)
    cluster.ask_again()
    cluster.settle()
    assert cluster.told("b").strategy is DriverStrategy.PRECOMPILED
    assert cluster.told("b").phase is DriverPhase.READY


def test_while_the_registry_does_not_answer_a_fresh_node_waits(cluster: Cluster) -> None:
    cluster.silent = True
    cluster.node("a", K1)
    cluster.settle()
    assert not cluster.sets
    assert cluster.told("a").phase is DriverPhase.WAITING
    assert "no answer" in cluster.told("a").reason


def test_a_fresh_node_gets_what_its_pool_has_while_the_registry_does_not_answer_a_new_controller(
    cluster: Cluster,
) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.settle()
    cluster.asked.clear()
    cluster.silent = True
    cluster.node("b", K1)
    cluster.settle()
    assert cluster.nodes["b"].driver_set == cluster.nodes["a"].driver_set


def test_another_version_comes_to_serving_nodes_by_the_rollout_and_to_fresh_ones_at_once(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.settle()
    old = cluster.nodes["a"].driver_set
    source = msgspec.structs.replace(SOURCE, version="535.54.03")
    cluster.policy = msgspec.structs.replace(cluster.policy, source=source)
    cluster.node("b", K1)
    cluster.settle()
    assert cluster.nodes["a"].driver_set == old
    wanted = cluster.decision.desired["a"]
    assert (wanted.set, wanted.when_idle) == (cluster.nodes["b"].driver_set, False)
    assert cluster.told("b").version == "535.54.03"


def _another(cluster: Cluster, **source: str) -> None:
    cluster.policy = msgspec.structs.replace(cluster.policy, source=msgspec.structs.replace(SOURCE, **source))


def _without_images(cluster: Cluster) -> None:
    _another(cluster, version="535.54.03")
    cluster.images.clear()


def _registry_that_is_silent(cluster: Cluster) -> None:
    _another(cluster, version="535.54.03")
    cluster.silent = True


def _other_settings(cluster: Cluster) -> None:
    cluster.policy = msgspec.structs.replace(cluster.policy, kernel_module_type="open")


def _other_repository(cluster: Cluster) -> None:
    _another(cluster, repository="registry.local/nvidia")
    cluster.has(ImageKind.PRECOMPILED, K1, "other")


CHANGES: list[tuple[Callable[[Cluster], None], str]] = [
    (lambda cluster: _another(cluster, version="535.54.03"), "535.54.03"),
    (_without_images, "535.54.03"),
    (_registry_that_is_silent, "535.54.03"),
    (_other_settings, "525.125.06 with the settings of ClusterPolicy/p"),
    (_other_repository, "525.125.06 from registry.local/nvidia/driver"),
    (lambda cluster: _another(cluster, repository="registry.local/nvidia"), ""),  # the same bytes
    (lambda cluster: cluster.has(ImageKind.PRECOMPILED, K1, "rebuilt"), ""),  # the registry's doing
]


@pytest.mark.parametrize(("change", "wanted"), CHANGES)
def test_a_driver_that_works_is_not_the_wanted_one_until_it_is_what_the_policy_names(
    cluster: Cluster, change: Callable[[Cluster], None], wanted: str
) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.settle()
    change(cluster)
    cluster.settle()
    status = cluster.told("a")
    assert (status.phase, status.wanted) == (DriverPhase.READY, wanted)
    shown = cluster.nodes["a"].condition
    assert shown is not None
    assert (shown.status, shown.reason) == (("False", "Outdated") if wanted else ("True", "Ready"))
    cluster.asked.clear()  # a controller that has just started, before a registry has answered
    assert not any(isinstance(each, WriteStatus) for each in plan_cluster(cluster.snapshot()).instructions)


def test_a_node_where_nothing_serves_stays_with_what_serves_elsewhere_while_a_newer_set_has_failed(
    cluster: Cluster,
) -> None:
    cluster.has(ImageKind.PRECOMPILED)
    cluster.node("a")
    cluster.node("b")
    cluster.settle()
    before = cluster.nodes["a"].driver_set
    source = msgspec.structs.replace(SOURCE, version="535.54.03")
    cluster.policy = msgspec.structs.replace(cluster.policy, source=source)
    cluster.act(*cluster.decide())
    wanted = cluster.decision.desired["a"].set
    assert wanted != before
    cluster.failed = {wanted: "its container ended 6 times"}
    cluster.node("fresh")
    cluster.reboot("b", K1, "b1")
    labels = []
    for _ in range(8):
        made = cluster.decide()
        labels += [(one.node, one.set) for one in made if isinstance(one, LabelNode)]
        cluster.act(*made)
    assert labels == [("fresh", before)]
    assert "its container ended 6 times" in cluster.told("fresh").reason


def test_an_image_that_vanishes_from_the_registry_takes_no_driver_away(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.settle()
    before = cluster.nodes["a"].driver_set
    cluster.images.clear()
    cluster.ask_again()
    cluster.settle()
    assert cluster.nodes["a"].driver_set == before
    assert cluster.told("a").phase is DriverPhase.READY


def test_nothing_is_written_twice(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED, K1)
    cluster.node("a", K1)
    cluster.node("b", K2)
    cluster.node("blank", None, missing=("a fact is missing",))
    cluster.settle()
    assert cluster.decide() == []


def test_a_driver_that_is_no_longer_asked_for_goes_with_all_that_was_said_of_it(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.settle()
    cluster.managed = False
    cluster.settle()
    assert not cluster.sets
    facts = cluster.nodes["a"]
    assert (facts.driver_set, facts.status_annotation, facts.condition) == ("", "", None)


@pytest.mark.parametrize("end", ["policy deleted", "opted out", "pre-installed", "another operator's"])
def test_no_driver_is_taken_away_under_pods_that_use_it(cluster: Cluster, end: str) -> None:
    cluster.node("a", K1)
    cluster.settle()
    before = cluster.nodes["a"].driver_set
    cluster.users.add("a")
    match end:
        case "policy deleted":
            cluster.managed = False
        case "opted out":
            cluster.change("a", opted_out="label says so")
        case "pre-installed":
            cluster.change("a", preinstalled="label says so")
        case _:
            foreign = "gpu-operator/nvidia-driver-daemonset-x"
            cluster.pods["a"] = msgspec.structs.replace(cluster.pods["a"], foreign=foreign)
    cluster.settle()
    assert cluster.nodes["a"].driver_set == before
    assert before in cluster.sets
    assert cluster.told("a").leaving
    assert "Its driver stays while pods use its cards." in cluster.told("a").reason
    cluster.users.clear()
    cluster.settle()
    assert cluster.nodes["a"].driver_set == ""
    assert not cluster.sets


def test_pods_of_a_boot_in_which_the_driver_never_worked_hold_nothing(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.settle()
    cluster.reboot("a", K1, "b1")
    cluster.act(*cluster.decide())
    (driver,) = cluster.pods["a"].drivers
    crashed = msgspec.structs.replace(driver, progress=DriverPodProgress.STARTING, fault="ended 3 times")
    cluster.pods["a"] = msgspec.structs.replace(cluster.pods["a"], drivers=(crashed,))
    cluster.users.add("a")
    cluster.change("a", opted_out="label says so")
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set == ""


def test_a_driver_that_never_came_is_not_kept_for_pods_that_use_the_hosts(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.act(*cluster.decide())
    cluster.users.add("a")
    cluster.change("a", preinstalled="the driver manager found one")
    cluster.settle()
    assert cluster.nodes["a"].driver_set == ""
    assert cluster.told("a").strategy is DriverStrategy.PREINSTALLED


def test_pods_that_hold_a_driver_which_no_longer_serves_leave_by_the_rollout_before_another_one_comes(
    cluster: Cluster,
) -> None:
    cluster.node("a", K1)
    cluster.settle()
    before = cluster.nodes["a"].driver_set
    pods = cluster.pods["a"]
    (driver,) = pods.drivers
    crashed = msgspec.structs.replace(
        driver, progress=DriverPodProgress.STARTING, ready_since=0.0, fault="ended 5 times"
    )
    cluster.pods["a"] = msgspec.structs.replace(pods, drivers=(crashed,))
    cluster.act(*cluster.decide())
    cluster.users.add("a")
    source = msgspec.structs.replace(SOURCE, version="535.54.03")
    cluster.policy = msgspec.structs.replace(cluster.policy, source=source)
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set == before
    assert cluster.decision.desired["a"].set not in {"", before}
    cluster.users.clear()
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set != before


def test_a_driver_that_does_not_come_is_taken_from_elsewhere_though_it_is_the_same(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.settle()
    made = cluster.set_of("a").set
    elsewhere = msgspec.structs.replace(made, id="elsewhere0", image=f"mirror.local/driver@{made.digest}")
    del cluster.sets[made.id]
    cluster.sets[elsewhere.id] = ExistingSet(set=elsewhere, uid="ds")
    (driver,) = cluster.pods["a"].drivers
    cluster.change("a", driver_set=elsewhere.id)
    cluster.pods["a"] = NodePods(drivers=(msgspec.structs.replace(driver, set=elsewhere.id),))
    cluster.act(*cluster.decide())
    assert cluster.nodes["a"].driver_set == elsewhere.id
    broken = msgspec.structs.replace(
        driver, set=elsewhere.id, progress=DriverPodProgress.STARTING, fault="ended 3 times"
    )
    cluster.pods["a"] = NodePods(drivers=(broken,))
    cluster.settle()
    assert cluster.nodes["a"].driver_set == made.id


def test_what_the_rollout_noted_of_a_node_is_ended_with_the_policy(cluster: Cluster) -> None:
    record = encode_upgrade_record(
        UpgradeRecord(previous="s1", target="s2", since=1.0, began=1.0, cause="failed", restored=True)
    )
    cluster.node("a", K1, record_annotation=record, upgrade_state="upgrade-failed")
    cluster.managed = False
    cluster.decide()
    assert cluster.decision.desired["a"].set == ""


def test_the_toolkit_goes_after_the_last_driver_that_pods_still_use(cluster: Cluster) -> None:
    for name in ("a", "b"):
        cluster.node(name, K1)
    cluster.settle()
    cluster.toolkit, cluster.managed, cluster.users = True, False, {"a"}
    cluster.settle()
    assert [bool(each.driver_set) for each in cluster.nodes.values()] == [True, False]
    assert DeleteToolkit() not in cluster.decide(), "a container of that pod may start anew"
    cluster.users.clear()
    cluster.settle()
    assert DeleteToolkit() in cluster.decide()


def test_a_proof_does_not_outlive_what_was_noted_of_its_node(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.settle()
    proof = cluster.pods["a"].validation
    assert proof is not None
    cluster.managed = False
    cluster.change("a", driver_set="", status_annotation="", condition=None)
    assert DeletePod(name=proof.name, uid=proof.uid) in cluster.decide()


def test_a_pod_of_another_operator_is_a_driver_that_the_host_has(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.pods["a"] = NodePods(foreign="gpu-operator/nvidia-driver-daemonset-x")
    cluster.act(*cluster.decide())
    assert cluster.told("a").strategy is DriverStrategy.PREINSTALLED
    assert not cluster.sets


@pytest.mark.parametrize(
    ("word", "age", "waits"),
    [
        (AgentsWord.NONE_YET, 60.0, False),
        (AgentsWord.NONE_YET, 3600.0, True),
        (AgentsWord.WITH_DRIVER, 60.0, True),
        (AgentsWord.WITHOUT_DRIVER, 3600.0, False),
        (AgentsWord.SILENT, 3600.0, False),
    ],
)
def test_a_node_gets_no_driver_before_its_agent_has_said_whether_the_host_has_one(
    cluster: Cluster, word: AgentsWord, age: float, waits: bool
) -> None:
    cluster.has(ImageKind.PRECOMPILED)
    cluster.node("a", agent=word, created=rfc3339(cluster.now - age))
    cluster.settle()
    assert bool(cluster.nodes["a"].driver_set) is not waits
    assert (cluster.told("a").phase is DriverPhase.WAITING) is waits


def test_a_new_node_waits_for_its_agent_if_one_of_its_kind_has_a_driver_of_its_own(cluster: Cluster) -> None:
    cluster.has(ImageKind.PRECOMPILED)
    cluster.node("a", preinstalled="its agent found 570.86.15 there", offers_gpus=True)
    cluster.node("b", agent=AgentsWord.NONE_YET, created=rfc3339(cluster.now))
    cluster.node("c", K2, agent=AgentsWord.NONE_YET, created=rfc3339(cluster.now))
    cluster.has(ImageKind.PRECOMPILED, K2)
    cluster.settle()
    assert [bool(cluster.nodes[name].driver_set) for name in "abc"] == [False, False, True]
    cluster.change("b", preinstalled="its agent found 570.86.15 there", offers_gpus=True)
    cluster.settle()
    assert (cluster.told("b").phase, cluster.told("b").strategy) == (DriverPhase.READY, DriverStrategy.PREINSTALLED)


@pytest.mark.parametrize("why", ["its label nvidia.com/gpu.deploy.driver is false"])
def test_a_node_that_is_opted_out_is_left_alone(cluster: Cluster, why: str) -> None:
    cluster.node("a", K1, opted_out=why)
    cluster.act(*cluster.decide())
    assert why in cluster.told("a").reason
    assert not cluster.sets


def test_a_frozen_world_is_not_touched(cluster: Cluster) -> None:
    cluster.node("a", K1)
    cluster.settle()
    world = ClusterSnapshot(nodes=cluster.nodes, selection=PolicySelection(frozen="mistakes"), sets=cluster.sets)
    assert plan_cluster(world).instructions == ()


POOLS = (K1, K2, pool("rocky", "9.4", "5.14.0-427.el9_4.x86_64", "amd64"))
NAMES = st.sampled_from(["a", "b", "c"])


class Anything(RuleBasedStateMachine):
    """Nodes come, boot into other kernels and go; images come and go; writes are lost; pods are slow or broken."""

    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster()
        self.cluster.node("a", K1)
        self.boots = 0
        self.created: set[str] = set()

    @rule(name=NAMES, of=st.sampled_from(POOLS))
    def join(self, name: str, of: PoolKey) -> None:
        self.cluster.node(name, of)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.cluster.nodes.pop(name, None)
        self.cluster.pods.pop(name, None)

    @rule(name=NAMES, of=st.sampled_from(POOLS))
    def boot(self, name: str, of: PoolKey) -> None:
        if name in self.cluster.nodes:
            self.boots += 1
            self.cluster.reboot(name, of, f"b{self.boots}")

    @rule(
        kind=st.sampled_from([ImageKind.PRECOMPILED, ImageKind.PRECOMPILED_BRANCH, ImageKind.BUILDER]),
        of=st.sampled_from(POOLS),
        digest=st.sampled_from(["a", "b", None]),
    )
    def push(self, kind: ImageKind, of: PoolKey, digest: str | None) -> None:
        if digest is None:
            self.cluster.images.pop((kind, of), None)
        else:
            self.cluster.has(kind, of, digest)
        self.cluster.ask_again()

    @rule(silent=st.booleans())
    def answers(self, silent: bool) -> None:
        self.cluster.silent = silent
        self.cluster.ask_again()

    @rule(version=st.sampled_from(["525.125.06", "535.54.03"]))
    def version(self, version: str) -> None:
        source = msgspec.structs.replace(self.cluster.policy.source, version=version)
        self.cluster.policy = msgspec.structs.replace(self.cluster.policy, source=source)

    @rule()
    def restart(self) -> None:
        """A new controller knows nothing that is not stored."""
        self.cluster.asked.clear()
        self.cluster.unpullable.clear()

    @rule(name=NAMES, broken=st.booleans())
    def kubelet(self, name: str, broken: bool) -> None:
        if name in self.cluster.nodes:
            images = frozenset(each.set.image for each in self.cluster.sets.values())
            self.cluster.kubelet(name, broken=images if broken else frozenset())

    @rule(data=st.data())
    def controller(self, data: st.DataObject) -> None:
        """A round of which any part may be carried out."""
        decided = self.cluster.decide()
        for one in decided:
            if isinstance(one, CreateSet):
                found = {each.pinned for each in self.cluster.asked.values() if each.outcome is Outcome.FOUND}
                assert one.set.image in found
            if isinstance(one, LabelNode) and one.set not in {"", CHANGING}:
                sets = {each.set.id: each.set for each in decided if isinstance(each, CreateSet)}
                sets |= {key: each.set for key, each in self.cluster.sets.items()}
                assert sets[one.set].pool == self.cluster.nodes[one.node].pool
            if isinstance(one, LabelNode):
                self._does_not_disturb(one)
        done = [one for one in decided if data.draw(st.integers(0, 3)) > 0]
        self.cluster.act(*done)

    def _does_not_disturb(self, label: LabelNode) -> None:
        facts, pods = self.cluster.nodes[label.node], self.cluster.pods[label.node]
        current = self.cluster.sets.get(facts.driver_set)
        if current is not None and current.set.pool == facts.pool:
            assert not pods.validated(facts.driver_set), "what serves is the rollout's business"

    @invariant()
    def one_driver_on_a_node(self) -> None:
        for pods in self.cluster.pods.values():
            assert len(pods.drivers) <= 1

    @invariant()
    def calm_returns(self) -> None:
        """From anywhere, with an answering registry, each node comes to a driver that fits it, or says why not."""
        cluster = Cluster()
        for field in ("policy", "nodes", "sets", "pods", "images", "now"):
            value = getattr(self.cluster, field)
            setattr(cluster, field, dict(value) if isinstance(value, dict) else value)
        cluster.settle(16)
        for name, facts in cluster.nodes.items():
            told = cluster.told(name)
            assert told.phase in {DriverPhase.READY, DriverPhase.BLOCKED}
            if told.phase is DriverPhase.READY:
                assert cluster.sets[facts.driver_set].set.pool == facts.pool
        assert cluster.decide() == []


Anything.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestAnything = Anything.TestCase
