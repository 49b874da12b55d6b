"""Rules about other pods agree with the lab's scheduler, which looks at every pod anew for every question."""

import sys
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.api.names import MIG_CONFIG_LABEL, NodeName
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.cluster.pod_affinity import HostPorts, PodAffinityFilter
from tessera.controller.cluster.pod_index import PodIndex
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.kube.resources import Node, Pod
from tessera.placement.demand import StepBudget
from tessera.reasons.node_rules import name_rule
from tessera_lab.scheduler.decision import collect_rejections
from tessera_lab.scheduler.filters.topology import affinity_filter, spread_filter
from tessera_lab.scheduler.state.node_cache import CachedPod as ScheduledPodInfo
from tessera_lab.scheduler.state.node_cache import NodeCache, build_pod_info

ZONE, HOST = "zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SLICE = {"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}

Obj = dict[str, Any]

_labels = st.fixed_dictionaries({}, optional={"a": st.sampled_from("xy"), "b": st.sampled_from("xy")})
_tests = st.lists(
    st.one_of(
        st.builds(lambda k, v: {"key": k, "operator": "In", "values": v}, st.sampled_from("ab"), st.just(["x", "y"])),
        st.builds(
            lambda k, v: {"key": k, "operator": "NotIn", "values": [v]}, st.sampled_from("ab"), st.sampled_from("xy")
        ),
        st.builds(
            lambda k, o: {"key": k, "operator": o}, st.sampled_from("ab"), st.sampled_from(["Exists", "DoesNotExist"])
        ),
    ),
    max_size=2,
)
_selector = st.one_of(st.none(), st.builds(lambda m, e: {"matchLabels": m, "matchExpressions": e}, _labels, _tests))
_key = st.sampled_from([ZONE, HOST, "absent"])


@st.composite
def _term(draw: st.DrawFn) -> Obj:
    term: Obj = {"topologyKey": draw(_key)}
    for key, value in (
        ("labelSelector", draw(_selector)),
        ("namespaceSelector", draw(st.one_of(st.none(), st.just({}), st.just({"matchLabels": {"team": "t"}})))),
        ("namespaces", draw(st.one_of(st.none(), st.just(["one"]), st.just(["one", "two"])))),
    ):
        if value is not None:
            term[key] = value
    return term


@st.composite
def _rule(draw: st.DrawFn) -> Obj:
    rule: Obj = {
        "topologyKey": draw(_key),
        "maxSkew": draw(st.integers(1, 2)),
        "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"])),
        "nodeAffinityPolicy": draw(st.sampled_from(["Honor", "Ignore"])),
        "nodeTaintsPolicy": draw(st.sampled_from(["Honor", "Ignore"])),
        "matchLabelKeys": draw(st.sampled_from([[], ["a"]])),
    }
    selector, domains = draw(_selector), draw(st.one_of(st.none(), st.integers(1, 3)))
    if selector is not None:
        rule["labelSelector"] = selector
    if domains is not None:
        rule["minDomains"] = domains
    return rule


@st.composite
def _pod(draw: st.DrawFn, number: int) -> Obj:
    port = draw(st.one_of(st.none(), st.sampled_from([80, 81])))
    address = draw(st.sampled_from(["", "10.0.0.1", "10.0.0.2"]))
    ports = [{"hostPort": port, "hostIP": address, "protocol": "TCP"}] if port else []
    affinity = {
        kind: {REQUIRED: draw(st.lists(_term(), min_size=1, max_size=2))}
        for kind in ("podAffinity", "podAntiAffinity")
        if draw(st.booleans())
    }
    spec: Obj = {"containers": [{**SLICE, "ports": ports}], "affinity": affinity}
    if draw(st.booleans()):
        spec["topologySpreadConstraints"] = draw(st.lists(_rule(), min_size=1, max_size=2))
    if draw(st.integers(0, 3)) == 0:
        spec["nodeSelector"] = {ZONE: draw(st.sampled_from("pq"))}
    meta: Obj = {"name": f"p{number}", "uid": f"u{number}", "namespace": draw(st.sampled_from(["one", "two"]))}
    meta["labels"] = draw(_labels)
    if draw(st.integers(0, 4)) == 0:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": meta, "spec": spec}


@st.composite
def _node(draw: st.DrawFn, number: int) -> Obj:
    zone = draw(st.sampled_from(["p", "q", "r", None]))
    labels = {MIG_CONFIG_LABEL: "dynamic", HOST: f"n{number}"} | ({ZONE: zone} if zone else {})
    taints = [{"key": "k", "effect": "NoSchedule"}] if draw(st.integers(0, 3)) == 0 else []
    return {"metadata": {"name": f"n{number}", "labels": labels}, "spec": {"taints": taints}}


class Both:
    """One cluster as both sides keep it."""

    def __init__(self, nodes: list[Obj]) -> None:
        self.index, self.pods, self.lab = NodeIndex(), PodIndex(), NodeCache()
        self.work = StepBudget(sys.maxsize)
        self.batch = PodAffinityFilter(self.pods, self.index, self.work)  # one for all questions: it remembers answers
        for node in nodes:
            self.index.put(read_node(msgspec.convert(node, Node)))
            self.lab.set_node(node["metadata"]["name"], node["metadata"]["labels"], node["spec"], {})
        for name, labels in (("one", {"team": "t"}), ("two", {})):
            self.pods.set_namespace(name, labels)
            self.lab.namespaces[name] = labels

    def put(self, pod: Obj, node: str | None) -> None:
        self.pods.put(facts(pod), NodeName(node) if node else None)
        if node:
            self.lab.place(needs(pod), node)
        else:
            self.lab.remove_pod(pod["metadata"]["uid"])

    def ours(self, pod: Obj) -> dict[str, str]:
        """Returns the result of our filters for each node."""
        judges = (HostPorts(self.pods, self.work), self.batch)
        said = {
            name: [why for judge in judges if (why := judge.refusal(facts(pod), NodeName(name)))]
            for name in self.lab.nodes
        }
        return {name: name_rule(found[0]) if found else "" for name, found in said.items()}

    def theirs(self, pod: Obj) -> dict[str, str]:
        """Returns the scheduler's result, for the pod as it is and as the promise pins it."""
        return {name: self._judge(pod, name) or self._judge(pinned(pod, name), name) for name in self.lab.nodes}

    def _judge(self, pod: Obj, name: str) -> str:
        one, node = needs(pod), self.lab.nodes[name]
        spec = {"containers": pod["spec"]["containers"], "tolerations": [{"operator": "Exists"}]}
        bare = build_pod_info(one.key, one.uid, 0.0, spec)
        taken = [each.reason for each in collect_rejections(bare, node) if "ports" in each.reason]
        for filter_ in (spread_filter(one, self.lab), affinity_filter(one, self.lab)):
            why = filter_(node) if filter_ is not None else None
            taken += [why.reason] if why is not None else []
        return taken[0] if taken else ""


def facts(pod: Obj) -> PodInfo:
    return read_pod(msgspec.convert(pod, Pod))


def needs(pod: Obj) -> ScheduledPodInfo:
    meta = pod["metadata"]
    key, gone = f"{meta['namespace']}/{meta['name']}", "deletionTimestamp" in meta
    return build_pod_info(key, meta["uid"], 0.0, pod["spec"], meta["labels"], terminating=gone)


def pinned(pod: Obj, node: str) -> Obj:
    selector = {**pod["spec"].get("nodeSelector", {}), HOST: node}
    return {**pod, "spec": {**pod["spec"], "nodeSelector": selector}}


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_the_index_says_what_the_scheduler_says(data: st.DataObject) -> None:
    both = Both([data.draw(_node(number)) for number in range(data.draw(st.integers(1, 5)))])
    pods = [data.draw(_pod(number)) for number in range(6)]
    nodes = st.sampled_from([*both.lab.nodes, None])
    for _ in range(data.draw(st.integers(1, 8))):
        both.put(data.draw(st.sampled_from(pods[:-1])), data.draw(nodes))
        for asked in (pods[-1], data.draw(st.sampled_from(pods))):
            if both.lab.is_placed(asked["metadata"]["uid"]):
                continue
            ours, theirs = both.ours(asked), both.theirs(asked)
            assert {name: bool(why) for name, why in ours.items()} == {name: bool(why) for name, why in theirs.items()}


def test_pods_of_one_batch_count_for_each_other_until_it_ends() -> None:
    nodes = [{"metadata": {"name": n, "labels": {HOST: n}}, "spec": {}} for n in ("n1", "n2")]
    both = Both(nodes)
    spec = {"containers": [{**SLICE, "ports": [{"hostPort": 80}]}]}
    one, two = ({"metadata": {"name": n, "uid": n, "namespace": "one", "labels": {}}, "spec": spec} for n in "ab")
    work = StepBudget(sys.maxsize)
    judge, ports = PodAffinityFilter(both.pods, both.index, work), HostPorts(both.pods, work)
    judge.reserve(facts(one), NodeName("n1"))
    assert ports.refusal(facts(two), NodeName("n1"))
    assert not ports.refusal(facts(two), NodeName("n2"))
    judge.end()
    assert not ports.refusal(facts(two), NodeName("n1"))


def test_pods_of_one_rule_with_other_node_selectors_are_judged_apart() -> None:
    """The pods of a spread count on the nodes that the pod's own selector admits."""
    zones = {"n1": "p", "n2": "q"}
    both = Both([{"metadata": {"name": n, "labels": {HOST: n, ZONE: z}}, "spec": {}} for n, z in zones.items()])
    rule = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spec: Obj = {
        "containers": [SLICE],
        "topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": {"a": "x"}}}],
    }
    there, narrow, wide = (
        {"metadata": {"name": n, "uid": n, "namespace": "one", "labels": {"a": "x"}}, "spec": spec} for n in "abc"
    )
    both.put(there, "n1")
    narrow["spec"] = {**spec, "nodeSelector": {ZONE: "p"}}
    judge = PodAffinityFilter(both.pods, both.index, StepBudget(sys.maxsize))
    assert not judge.refusal(facts(narrow), NodeName("n1"))
    assert judge.refusal(facts(wide), NodeName("n1"))
    assert not judge.refusal(facts(wide), NodeName("n2"))
