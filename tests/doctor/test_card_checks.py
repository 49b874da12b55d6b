"""``tessera doctor`` of an installation that serves ResourceClaims; of any other it says nothing of them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.doctor.test_checks import FORBIDDEN, HEALTHY, node
from tests.support.claim_cluster import ClaimCluster

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL
from tessera.doctor.card_checks import check_claims
from tessera.doctor.facts import ClaimFacts, ClusterFacts, Finding, Verdict, claim_driver
from tessera.dra.claims import DeviceClass
from tessera.dra.driver_objects import device_classes
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.dra.resource_slices import ResourceSlice

CLASSES = msgspec.convert(device_classes(DRIVER), list[DeviceClass])


def published(driver: str = DRIVER, node: str = "n1") -> list[ResourceSlice]:
    cluster = ClaimCluster(driver=driver)
    cluster.publish(node)
    return msgspec.convert(list(cluster.slices.values()), list[ResourceSlice])


def of_another(driver: str) -> list[ResourceSlice]:
    return [
        msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, labels={}))
        for each in published(driver)
    ]


def bare(items: Sequence[ResourceSlice]) -> list[ResourceSlice]:
    """The objects of a server that drops taints."""
    return [
        msgspec.structs.replace(
            each,
            spec=msgspec.structs.replace(
                each.spec, devices=tuple(msgspec.structs.replace(device, taints=()) for device in each.spec.devices)
            ),
        )
        for each in items
    ]


def labelled(name: str) -> Any:
    found = node(name)
    labels = {**found.metadata.labels, DEVICE_API_LABEL: DEVICE_API_DRA}
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=labels))


def examine(*, bindings: Sequence[str] = ("tessera-agent-claims",), nodes: Any = (), **changes: Any) -> list[Finding]:
    given = {"driver": DRIVER, "classes": CLASSES, "slices": published(), **changes}
    facts: ClusterFacts = msgspec.structs.replace(
        HEALTHY, claims=ClaimFacts(**given), bindings=list(bindings), nodes=nodes or [labelled("n1")]
    )
    return list(check_claims(facts))


def test_a_right_installation_has_nothing_to_mend() -> None:
    assert [(each.check, each.verdict) for each in examine()] == [
        ("claim-classes", Verdict.OK),
        ("claim-devices", Verdict.OK),
    ]


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"served": False}, "claims", Verdict.ERROR, "does not serve resource.k8s.io/v1"),
        ({"bindings": ()}, "claim-rights", Verdict.ERROR, "no policy binding tessera-agent-claims"),
        ({"classes": CLASSES[:1]}, "claim-classes", Verdict.ERROR, "no DeviceClass mig.tessera.dev"),
        ({"slices": bare(published())}, "claim-classes", Verdict.ERROR, "drops taints of devices"),
        ({"slices": published() + of_another(DRIVER)}, "claim-drivers", Verdict.ERROR, "is another program's"),
        ({"slices": published() + of_another(NVIDIA_DRIVER)}, "claim-drivers", Verdict.ERROR, "publish the same cards"),
        ({"nodes": [labelled("n1"), labelled("n2")]}, "claim-devices", Verdict.WARNING, "1 node labelled"),
        ({"slices": [], "nodes": [node()]}, "claim-devices", Verdict.WARNING, "no node publishes devices"),
    ],
)
def test_each_fault_is_found_with_what_to_do(changes: dict[str, Any], check: str, verdict: Verdict, words: str) -> None:
    (finding,) = [each for each in examine(**changes) if each.verdict is not Verdict.OK]
    assert (finding.check, finding.verdict) == (check, verdict)
    assert words in finding.text
    assert finding.advice


def test_what_an_unlike_driver_publishes_is_no_fault() -> None:
    """For example one of network cards."""
    nics = [
        msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, driver="dra.net"))
        for each in of_another(DRIVER)
    ]
    found = examine(slices=published() + nics)
    assert all(each.verdict is Verdict.OK for each in found)


def test_guarded_classes_keep_the_scheduler_away_where_taints_are_dropped() -> None:
    guarded = msgspec.convert(device_classes(DRIVER, guarded=True), list[DeviceClass])
    assert {each.verdict for each in examine(classes=guarded, slices=bare(published()))} == {Verdict.OK}


@pytest.mark.parametrize(("guarded", "verdict"), [(True, Verdict.ERROR), (False, Verdict.OK)])
def test_a_guard_is_wrong_where_the_scheduler_places(*, guarded: bool, verdict: Verdict) -> None:
    classes = msgspec.convert(device_classes(DRIVER, guarded=guarded), list[DeviceClass])
    finding, _ = examine(classes=classes, slices=bare(published()), by_scheduler=True)
    assert finding.verdict is verdict


PROCESSES = [{"spec": {"containers": [{"name": "c", "args": [f"--claim-driver={DRIVER}"]}]}}]


def test_a_lack_of_rights_is_no_fault_and_matters_where_claims_are_served() -> None:
    refused = msgspec.structs.replace(HEALTHY, claims=FORBIDDEN)
    assert list(check_claims(refused)) == []
    (finding,) = check_claims(msgspec.structs.replace(refused, pods=PROCESSES))
    assert finding.verdict is Verdict.UNKNOWN


def classes(driver: str, *, part_of: str) -> list[DeviceClass]:
    made = [
        {**each, "metadata": {**each["metadata"], "labels": {"app.kubernetes.io/part-of": part_of}}}
        for each in device_classes(driver)
    ]
    return msgspec.convert(made, list[DeviceClass])


@pytest.mark.parametrize(
    ("driver", "found", "nodes", "checks"),
    [
        ("", [], [node()], []),
        ("", classes(NVIDIA_DRIVER, part_of="nvidia"), [node()], []),
        ("", classes(NVIDIA_DRIVER, part_of="tessera"), [node()], ["claim-classes"]),
        ("", [], [labelled("n1")], ["claim-devices"]),
        (
            DRIVER,
            [*classes(DRIVER, part_of="tessera"), *classes(NVIDIA_DRIVER, part_of="tessera")],
            [],
            ["claim-classes"],
        ),
        (DRIVER, [*classes(DRIVER, part_of="tessera"), *classes(NVIDIA_DRIVER, part_of="nvidia")], [], []),
    ],
)
def test_what_is_left_of_claims_is_told(
    driver: str, found: list[DeviceClass], nodes: list[Any], checks: list[str]
) -> None:
    findings = examine(driver=driver, classes=found, nodes=nodes, slices=published() if driver else [])
    assert [each.check for each in findings if each.verdict is Verdict.WARNING] == checks
    assert all(each.advice for each in findings if each.verdict is Verdict.WARNING)


@pytest.mark.parametrize(
    ("args", "driver"),
    [(["controller", f"--claim-driver={DRIVER}"], DRIVER), (["controller"], ""), (["--claim-driver=x"], "")],
)
def test_the_driver_is_that_of_the_processes(args: Sequence[str], driver: str) -> None:
    assert claim_driver([{"spec": {"containers": [{"name": "c", "args": args}]}}]) == driver
