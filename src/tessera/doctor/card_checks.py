"""Checks of what the agents say of their nodes' cards: conditions, preflights, and the devices for ResourceClaims.

An installation without ``--claim-driver`` has a finding about claims only if something of them is left over.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tessera.api.names import CLAIM_DRIVERS, DEVICE_API_DRA, DEVICE_API_LABEL, gives_by_claims
from tessera.api.nodes.card_faults import read_withheld_holds, unblocking_steps
from tessera.api.nodes.node_marks import AGENT_CONDITIONS, DRIVER_CONDITION, is_marked_silent
from tessera.api.nodes.preflights import decode_tests, describe_test
from tessera.doctor.facts import (
    ClaimFacts,
    ClusterFacts,
    Finding,
    Refusal,
    claim_driver,
    error,
    not_examined,
    ok,
    warning,
)
from tessera.kube.resources import Node
from tessera.text import count_noun, list_names, one_line

if TYPE_CHECKING:
    from tessera.dra.claims import DeviceClass
    from tessera.dra.resource_slices import ResourceSlice


#: Nodes, or cards, that a finding tells of one by one.
_NAMED = 5
_CHECKS = ("node-conditions", "preflight", "withheld-cards")
#: The admission policy that tessera install --claim-driver brings together with the rights.
_POLICY = "tessera-agent-claims"
_INSTALL = "tessera install --reuse --claim-driver {}"


def check_cards(nodes: Sequence[Node] | Refusal) -> Iterator[Finding]:
    """Yields the findings about conditions, preflights, and withheld cards that pods hold."""
    if isinstance(nodes, Refusal):
        yield from (not_examined(check, nodes, needs="list nodes") for check in _CHECKS)
        return
    yield _conditions(nodes)
    yield _preflights(nodes)
    yield _withheld(nodes)


def _conditions(nodes: Sequence[Node]) -> Finding:
    """What is said of the nodes: another driver than the wanted one, a layout that does not fit, a missing profile."""
    wrong: dict[str, str] = {}
    for each in nodes:
        said = [one for one in each.status.conditions if one.status == "False" or is_marked_silent(one)]
        bad = [
            f"{one.type}: {one.reason}"
            for one in said
            if one.type in AGENT_CONDITIONS or (one.type == DRIVER_CONDITION and _wants_driver(each))
        ]
        if bad:
            wrong[each.metadata.name] = f"{each.metadata.name} {', '.join(bad)}"
    if wrong:
        advice = f"tessera why node/{next(iter(wrong))}"
        return warning("node-conditions", f"not as wanted: {_list(list(wrong.values()))}", advice, _objects(wrong))
    return ok("node-conditions", "drivers, layouts and profiles of all nodes are as wanted")


def _wants_driver(node: Node) -> bool:
    from tessera.driver.node_facts import opt_out_reason  # few nodes have a driver that is not as wanted

    return not opt_out_reason(node.metadata.labels)


def _preflights(nodes: Sequence[Node]) -> Finding:
    """The last preflight of each card: what failed, or tested nothing, and that the others passed."""
    tests = [(node.metadata.name, test) for node in nodes for test in decode_tests(node.metadata.annotations)]
    bad = {f"{name}/{test.index}": test for name, test in tests if test.finding or test.skipped}
    if bad:
        text = _list([f"card {card}: {describe_test(test)}" for card, test in bad.items()])
        named = dict.fromkeys(card.rpartition("/")[0] for card in bad)
        return warning("preflight", text, f"tessera health {next(iter(named))}", _objects(named))
    if not tests:
        return ok("preflight", "no card had a preflight")
    return ok("preflight", f"{count_noun(len(tests), 'card')} passed the last preflight")


def _withheld(nodes: Sequence[Node]) -> Finding:
    """Withheld cards that pods hold: each keeps a good one empty."""
    found = {node.metadata.name: (node, holds) for node in nodes if (holds := read_withheld_holds(node))}
    if not found:
        return ok("withheld-cards", "no pod on a withheld card keeps a good one empty")
    text = _list([hold.describe() for _, holds in found.values() for hold in holds.values()])
    first = next(iter(found.values()))[0]
    return warning("withheld-cards", text, "; ".join(unblocking_steps(first)), _objects(found))


def _list(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"{one_line('; '.join(texts[:_NAMED]), 500)}{more}"


def _objects(nodes: Iterable[str]) -> list[str]:
    return [f"node/{each}" for each in nodes]


def check_claims(facts: ClusterFacts) -> Iterator[Finding]:
    """Yields the findings about the API, rights and classes, what nodes publish, and other drivers beside."""
    found = facts.claims
    if found is None:
        return
    if isinstance(found, Refusal):
        if not claim_driver(facts.pods):
            return
        yield not_examined("claims", found, needs="read ResourceClaims' objects (the ClusterRole tessera-admin)")
        return
    yield from _leftovers(found)
    if not found.driver:
        yield from _unserved(facts)
        return
    if not found.served:
        text = "the API server does not serve resource.k8s.io/v1, so no ResourceClaim gets slices"
        yield error("claims", text, "use Kubernetes 1.34 or newer, or install without --claim-driver")
        return
    if not isinstance(facts.bindings, Refusal) and _POLICY not in facts.bindings:
        text = f"the rights for ResourceClaims are not installed: there is no policy binding {_POLICY}"
        yield error("claim-rights", text, _INSTALL.format(found.driver))
    yield _classes(found)
    yield from _rivals(found)
    yield _published(facts, found)


def _leftovers(found: ClaimFacts) -> Iterator[Finding]:
    if not found.classes:
        return
    from tessera.dra.driver_objects import device_classes

    wanted = {each["metadata"]["name"] for each in device_classes(found.driver)} if found.driver else set[str]()
    others = {each["metadata"]["name"] for name in CLAIM_DRIVERS for each in device_classes(name)} - wanted
    left = sorted(
        each.metadata.name
        for each in found.classes
        if each.metadata.name in others and each.metadata.labels.get("app.kubernetes.io/part-of") == "tessera"
    )
    if left:
        text = f"DeviceClass {list_names(left)} is left of an earlier installation, and no pod with it gets a device"
        yield warning("claim-classes", text, f"kubectl delete deviceclass {' '.join(left)}")


def _unserved(facts: ClusterFacts) -> Iterator[Finding]:
    chosen = _chosen(facts)
    if chosen:
        yield warning(
            "claim-devices",
            f"{count_noun(len(chosen), 'node')} labelled {DEVICE_API_LABEL}={DEVICE_API_DRA} give no slices at all:"
            " Tessera serves no ResourceClaims, and pods with limits go to other nodes",
            f"{_INSTALL.format(CLAIM_DRIVERS[0])}, or: kubectl label node NODE {DEVICE_API_LABEL}-",
            [f"node/{each}" for each in sorted(chosen)],
        )


def _chosen(facts: ClusterFacts) -> set[str]:
    nodes = () if isinstance(facts.nodes, Refusal) else facts.nodes
    return {each.metadata.name for each in nodes if gives_by_claims(each.metadata.labels)}


def _classes(found: ClaimFacts) -> Finding:
    from tessera.dra.driver_objects import device_classes

    there = {each.metadata.name: each for each in found.classes}
    wanted = [each["metadata"]["name"] for each in device_classes(found.driver)]
    missing = [name for name in wanted if name not in there]
    if missing:
        return error("claim-classes", f"there is no DeviceClass {list_names(missing)}", _INSTALL.format(found.driver))
    open_ = [name for name in wanted if not _is_guarded(there[name])]
    guarded = [name for name in wanted if name not in open_]
    if found.by_scheduler and guarded:
        text = f"DeviceClass {list_names(guarded)} has a guard, so kube-scheduler, which places claims, takes no device"
        return error("claim-classes", text, _INSTALL.format(found.driver) + " --claim-placement scheduler")
    if open_ and not found.by_scheduler and _drops_taints(found):
        text = (
            f"the API server drops taints of devices, and DeviceClass {list_names(open_)} has no guard, so"
            " kube-scheduler gives devices away itself"
        )
        return error("claim-classes", text, _INSTALL.format(found.driver))
    return ok("claim-classes", f"all DeviceClasses of {found.driver} exist")


def _is_guarded(item: "DeviceClass") -> bool:
    from tessera.dra.requests import GUARD

    return any(each.cel is not None and each.cel.expression == GUARD for each in item.spec.selectors)


def _drops_taints(found: ClaimFacts) -> bool:
    devices = [device for each in _ours(found) for device in each.spec.devices]
    return bool(devices) and not any(device.taints for device in devices)


def _ours(found: ClaimFacts) -> "Sequence[ResourceSlice]":
    from tessera.dra.driver_objects import is_ours

    return [each for each in found.slices if each.spec.driver == found.driver and is_ours(each)]


def _rivals(found: ClaimFacts) -> Iterator[Finding]:
    from tessera.dra.driver_objects import find_rival

    nodes = sorted({each.spec.node_name for each in found.slices if each.spec.node_name})
    texts = {node: find_rival(found.driver, node, found.slices) for node in nodes}
    rivals = [node for node, text in texts.items() if text]
    if rivals:
        yield error(
            "claim-drivers",
            f"another DRA driver publishes under the name {found.driver}: {texts[rivals[0]]}",
            "remove that driver from these nodes, or label them with another device API",
            [f"node/{each}" for each in rivals],
        )
    ours = {each.spec.node_name for each in _ours(found)}
    for other in CLAIM_DRIVERS:
        beside = sorted({each.spec.node_name for each in found.slices if each.spec.driver == other} & ours)
        if beside and other != found.driver:
            yield error(
                "claim-drivers",
                f"drivers {other} and {found.driver} publish the same cards, so a card can be given twice",
                f"remove driver {other} from these nodes",
                [f"node/{each}" for each in beside],
            )


def _published(facts: ClusterFacts, found: ClaimFacts) -> Finding:
    publishing = {each.spec.node_name for each in _ours(found)}
    silent = sorted(_chosen(facts) - publishing)
    if silent:
        return warning(
            "claim-devices",
            f"{count_noun(len(silent), 'node')} labelled {DEVICE_API_LABEL}={DEVICE_API_DRA} publish no device",
            "see their agents: tessera why node/NODE",
            [f"node/{each}" for each in silent],
        )
    if not publishing:
        text = "no node publishes devices for ResourceClaims"
        return warning(
            "claim-devices", text, f"choose nodes: kubectl label node NODE {DEVICE_API_LABEL}={DEVICE_API_DRA}"
        )
    return ok("claim-devices", f"{count_noun(len(publishing), 'node')} publish devices")
