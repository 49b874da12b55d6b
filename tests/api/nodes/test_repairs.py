"""What is done about cards with faults, as the administrator writes it."""

import pytest

from tessera.api.names import REBOOT_REQUESTED
from tessera.api.nodes.repairs import (
    EVICTION_DELAY,
    PreflightMode,
    RebootWay,
    Repairs,
    asks_for_reboot,
    is_made_anew,
    parse_repairs,
    read_toleration,
)

FILE = """
evict: true
evictClaims: true
evictNodes: 2
tolerationSeconds: 600
preflight: all
podPreflight: true
reboot: annotation
rebootAnnotation: example.com/reboot=now
rebootCommand: [/usr/local/bin/reboot-node, --drain]
"""
#: Texts that are refused, and what the message has.
MISTAKES = {
    "evict: maybe": ("`bool`", "$.evict", "maybe"),
    "evictNodes: 0": ("$.evictNodes", ">= 1", "0"),
    "evictNodes: 1001": ("$.evictNodes", "<= 1000", "1001"),
    "tolerationSeconds: -1": ("$.tolerationSeconds", ">= 0"),
    "preflight: some": ("some", "$.preflight"),
    "reboot: kured": ("kured", "$.reboot"),
    "reboot: annotation": ("rebootAnnotation: missing", "example.com/reboot=true"),
    "rebootAnnotation: reboot": ('"reboot" is no annotation with a domain', "write example.com/reboot=true"),
    "rebootAnnotation: tessera.dev/cards": ("belongs to Tessera or Kubernetes", "domain of yours"),
    "rebootAnnotation: node.kubernetes.io/a": ("belongs to Tessera or Kubernetes",),
    "reboot: command": ("rebootCommand: missing", "[/usr/local/bin/reboot-node]"),
    "rebootCommand: [reboot]": ('"reboot" is no path on the host', "without a shell"),
    "rebootCommand: ['']": ("$.rebootCommand[0]", ">= 1"),
    "rebootCommand: reboot": ("$.rebootCommand", "array"),
    "evicts: true": ("unknown field `evicts`",),
    "evict: true\nevict: false": ("stands twice",),
    "[]": ("object",),
}


def test_the_file_is_read() -> None:
    found = parse_repairs(FILE)
    assert found == Repairs(
        evict=True,
        evict_claims=True,
        evict_nodes=2,
        toleration_seconds=600,
        preflight=PreflightMode.ALL,
        pod_preflight=True,
        reboot=RebootWay.ANNOTATION,
        reboot_annotation="example.com/reboot=now",
        reboot_command=("/usr/local/bin/reboot-node", "--drain"),
    )
    assert found.annotation == ("example.com/reboot", "now")
    assert Repairs(reboot_annotation="example.com/reboot").annotation == ("example.com/reboot", "true")


@pytest.mark.parametrize("text", ["", "{}", "# nothing"])
def test_an_empty_file_asks_for_nothing(text: str) -> None:
    assert parse_repairs(text) == Repairs()
    assert Repairs().summary == "nothing but resets of empty ones"


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_with_file_field_value_and_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"ConfigMap tessera-repairs: repairs\.yaml: ") as refusal:
        parse_repairs(text)
    for part in MISTAKES[text]:
        assert part in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def test_a_pod_may_be_evicted_after_the_delay_or_its_own_bounded_time() -> None:
    repairs = Repairs(evict=True, toleration_seconds=600)
    assert repairs.eviction_time(1000.0) == 1000 + EVICTION_DELAY
    assert repairs.eviction_time(1000.0, 300) == 1300
    assert repairs.eviction_time(1000.0, 1e9) == 1600


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600.0), ("", 0.0), ("-1", 0.0), ("1h", 0.0), ("٣", 0.0), ("1" * 10, 0.0)]
)
def test_a_pods_own_time_is_a_number_of_seconds(text: str, seconds: float) -> None:
    assert read_toleration({"tessera.dev/fault-toleration-seconds": text}) == seconds


@pytest.mark.parametrize(
    ("namespace", "owner", "anew"),
    [
        ("team", "ReplicaSet", True),
        ("team", "", False),
        ("team", "DaemonSet", False),
        ("team", "Node", False),
        ("kube-system", "ReplicaSet", False),
        ("kube-node-lease", "ReplicaSet", False),
        ("kube-team", "ReplicaSet", True),  # a name that a tenant can choose
        ("tessera-system", "ReplicaSet", False),
    ],
)
def test_only_pods_that_start_elsewhere_are_evicted(namespace: str, owner: str, anew: bool) -> None:
    assert is_made_anew(namespace, owner, "tessera-system") is anew


def test_a_request_for_a_reboot_is_over_with_its_boot() -> None:
    assert asks_for_reboot({REBOOT_REQUESTED: "boot-1"}, "boot-1")
    assert not asks_for_reboot({REBOOT_REQUESTED: "boot-1"}, "boot-2")
    assert not asks_for_reboot({REBOOT_REQUESTED: ""}, "")
    assert not asks_for_reboot({}, "boot-1")
