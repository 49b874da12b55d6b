"""What Kueue is told for Tessera: its Configuration, and the objects for teams that share the cluster's cards.

**Configuration.** The part by which it charges slices their GPU memory, whatever kind of workload asks. Kueue computes
what a workload asks for in three steps (Kueue documentation, "Resource transformations"): it adds the requests of a
pod's containers, drops resources whose name has an excluded prefix, and applies the transformations. Pods and groups
have the memory quota that Tessera's admission writes; a Job's template does not. So:

- every MIG resource is replaced by its memory in :data:`~tessera.kueue.objects.CHARGED_RESOURCE`;
- our own resource is excluded, or pods would be refused or charged double;
- a prefix that would drop MIG resources before the transformation is taken out.

It must be able to charge the profiles of the cluster's cards, and those that its nodes offer.

**Queues.** One ClusterQueue and one LocalQueue for each team, all with the same flavors, in Gi of GPU memory. A
ResourceFlavor's node labels become the node selector of the pods that it admits, so a flavor for each model needs nodes
with cards of one model only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from tessera.api.instaslice import Instaslice
from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, profile_of, resource_of
from tessera.api.problems import FileRefused, Problem
from tessera.kube.quantity import integer_value
from tessera.kube.resources import Node
from tessera.kueue.objects import CHARGED_RESOURCE, CHECK_CONTROLLER, CHECK_NAME, CONFIGURATION_GROUP, GROUP, Version
from tessera.mig.names import parse_profile_name, resource_spelling
from tessera.text import one_line

#: Prefix of our resource, for ``excludeResourcePrefixes``.
OWN_PREFIX = QUOTA_RESOURCE.partition("/")[0] + "/"

Json = dict[str, Any]
#: Ending of the resource of shares of slices; a share is not charged the slice's memory.
_SHARED = ".shared"
#: The label with the product of a node's cards, which Tessera's agent and GPU feature discovery write.
PRODUCT_LABEL = "nvidia.com/gpu.product"
#: The flavor of all cards.
ALL_CARDS = "gpu-memory"
_GIB = 2**30


class _Flow(dict[str, Any]):
    """A mapping that is written in one line."""


class _Dumper(yaml.SafeDumper):
    """Writes :class:`_Flow` mappings in one line, and lists indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents lists too."""
        del indentless
        return super().increase_indent(flow, indentless=False)


_Dumper.add_representer(
    _Flow, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=True)
)


def charged_gigabytes(profile: str) -> int:
    """The Gi that a slice is charged: the GB in its profile's name, as admission does; 0 if the text is no profile."""
    try:
        return parse_profile_name(profile).memory_gb
    except ValueError:
        return 0


def make_transformations(profiles: Iterable[str]) -> list[Json]:
    """Returns one transformation for each profile with memory in its name, in the given order without repetitions."""
    inputs = {resource_of(profile): charged_gigabytes(profile) for profile in profiles}
    return [
        {"input": resource, "strategy": "Replace", "outputs": {CHARGED_RESOURCE: f"{gigabytes}Gi"}}
        for resource, gigabytes in inputs.items()
        if gigabytes
    ]


def make_configuration(profiles: Iterable[str], version: Version) -> Json:
    """Returns a Configuration with nothing but the charges of these profiles; Kueue has defaults for the rest."""
    rules = make_transformations(profiles)
    return {
        "apiVersion": f"{CONFIGURATION_GROUP}/{version}",
        "kind": "Configuration",
        "resources": {"excludeResourcePrefixes": [OWN_PREFIX], **({"transformations": rules} if rules else {})},
    }


def extend_configuration(document: Any, profiles: Iterable[str]) -> tuple[Json, Sequence[str]]:
    """Adds the charges to a site's Configuration; everything else in it stays.

    Args:
        document: the decoded Configuration.
        profiles: the profiles to charge; none where queues count slices themselves.

    Returns:
        The new Configuration, and one sentence for each of the site's settings that had to change.

    Raises:
        FileRefused: the document is no Configuration, or its resources have another form.
    """
    if not isinstance(document, dict) or document.get("kind") != "Configuration":
        raise FileRefused([Problem("kind", "is not Configuration; give the text of Kueue's controller_manager_config")])
    resources = _mapping(document.get("resources"), "resources")
    wanted = make_transformations(profiles)
    ours = {each["input"] for each in wanted}
    notes: list[str] = []
    kept = []
    for each in _sequence(resources.get("transformations"), "resources.transformations"):
        rule = _mapping(each, "resources.transformations")
        if rule.get("input") in ours:
            if rule not in wanted:
                notes.append(f"the transformation of {rule['input']} is replaced")
        else:
            kept.append(rule)
    added: Json = {"transformations": [*kept, *wanted]} if kept or wanted else {}
    if resources.get("quotaCheckStrategy") == "IgnoreUndeclared":
        if "excludeResourcePrefixes" in resources:
            notes.append("excludeResourcePrefixes is removed: Kueue refuses it beside quotaCheckStrategy")
        prefixes = None
    else:
        prefixes = _prefixes(resources, notes)
    rest = {name: value for name, value in resources.items() if name != "excludeResourcePrefixes"}
    if prefixes is not None:
        added = {"excludeResourcePrefixes": prefixes, **added}
    return {**document, "resources": {**rest, **added}}, notes


def _prefixes(resources: Mapping[str, Any], notes: list[str]) -> list[str]:
    """The excluded prefixes without those that hide MIG resources, and with ours."""
    prefixes = [
        str(each) for each in _sequence(resources.get("excludeResourcePrefixes"), "resources.excludeResourcePrefixes")
    ]
    kept = []
    for each in prefixes:
        if hides_slices(each):
            notes.append(f'the prefix "{each}" is no longer excluded: Kueue would drop slices before it charges them')
        else:
            kept.append(each)
    return kept if any(QUOTA_RESOURCE.startswith(each) for each in kept) else [*kept, OWN_PREFIX]


def hides_slices(prefix: str) -> bool:
    """True if an excluded prefix drops resources of slices; a longer one drops some profiles."""
    return MIG_RESOURCE_PREFIX.startswith(prefix) or prefix.startswith(MIG_RESOURCE_PREFIX)


def write_configuration(document: Mapping[str, Any]) -> str:
    """Returns a Configuration as YAML; each transformation is one line."""
    resources = dict(document["resources"])
    rules = [
        _Flow({**each, "outputs": _Flow(each["outputs"])} if "outputs" in each else each)
        for each in resources.pop("transformations", ())
    ]
    resources |= {"transformations": rules} if rules else {}
    text: str = yaml.dump(
        {**document, "resources": resources}, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True
    )
    return text


def _mapping(value: Any, field: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FileRefused([Problem(field, "is not a mapping of names to values")])
    return value


def _sequence(value: Any, field: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise FileRefused([Problem(field, "is not a list")])
    return value


def profiles_in_cluster(instaslices: Iterable[Instaslice], nodes: Iterable[Node]) -> list[str]:
    """Returns the profiles in the resource's spelling, smallest first.

    Args:
        instaslices: the objects of nodes with slices on demand.
        nodes: all nodes; those with fixed layouts list MIG resources.
    """
    found = {resource_spelling(profile) for item in instaslices for profile in item.status.node_resources.profiles}
    for node in nodes:
        found |= {profile_of(name) for name in node.status.allocatable if not name.endswith(_SHARED)}
    charged = {profile: charged_gigabytes(profile) for profile in found if profile}
    return sorted((each for each, amount in charged.items() if amount), key=lambda each: (charged[each], each))


class CardPool(msgspec.Struct, frozen=True, kw_only=True):
    """Cards that share a flavor.

    Attributes:
        flavor: the flavor's name.
        node_labels: of the nodes; empty for all nodes.
        gigabytes: Gi of GPU memory that slices can have together; 0 if unknown.
        cpu: cores of the nodes.
        memory: bytes of memory of the nodes.
    """

    flavor: str
    node_labels: Mapping[str, str] = {}
    gigabytes: int = 0
    cpu: int = 0
    memory: int = 0


class TeamQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A team's part.

    Attributes:
        namespace: the team's namespace; its ClusterQueue has the same name.
        gigabytes: Gi of GPU memory by flavor.
    """

    namespace: str
    gigabytes: Mapping[str, int]


class SideQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Quantities of a team beside GPU memory; an empty text covers nothing of that resource."""

    cpu: str = ""
    memory: str = ""


def pools_of(nodes: Iterable[Node], *, by_model: bool) -> list[CardPool]:
    """Returns the pools of the nodes whose cards have slices on demand: one of all, or one of each product label.

    Args:
        nodes: all nodes.
        by_model: a pool for each value of :data:`PRODUCT_LABEL`; nodes without the label are left out.
    """
    pools: dict[str, CardPool] = {}
    for node in nodes:
        gigabytes = _amount(node, QUOTA_RESOURCE) // _GIB
        product = node.metadata.labels.get(PRODUCT_LABEL, "")
        if not gigabytes or (by_model and not product):
            continue
        flavor = flavor_name(product) if by_model else ALL_CARDS
        before = pools.get(flavor, CardPool(flavor=flavor))
        pools[flavor] = CardPool(
            flavor=flavor,
            node_labels={PRODUCT_LABEL: product} if by_model else {},
            gigabytes=before.gigabytes + gigabytes,
            cpu=before.cpu + _amount(node, "cpu"),
            memory=before.memory + _amount(node, "memory"),
        )
    return [pools[name] for name in sorted(pools)]


def flavor_name(product: str) -> str:
    """Returns the name of a product's flavor: lower case, as objects are named."""
    return product.lower().replace("_", "-").strip("-.")


def _amount(node: Node, resource: str) -> int:
    try:
        return integer_value(node.status.allocatable.get(resource, "0"))
    except ValueError:
        return 0  # kubelet corrects it with its next status


def make_queues(
    pools: Sequence[CardPool],
    teams: Sequence[TeamQuota],
    *,
    version: Version,
    side: SideQuota,
    local_queue: str,
    checked: bool,
) -> list[Json]:
    """Returns the objects in the order in which they can be applied.

    Args:
        pools: the cluster's cards.
        teams: the teams' parts.
        version: of Kueue's API.
        side: quantities of each team beside GPU memory, in each flavor.
        local_queue: the name of each team's LocalQueue.
        checked: let Tessera answer whether the slices can be placed, before a workload is admitted.
    """
    objects = [_object(version, "ResourceFlavor", pool.flavor, _spec_of(pool)) for pool in pools]
    if checked:
        objects.append(_object(version, "AdmissionCheck", CHECK_NAME, {"controllerName": CHECK_CONTROLLER}))
    for team in teams:
        objects.append(_object(version, "ClusterQueue", team.namespace, _cluster_queue(pools, team, side, checked)))
        objects.append(
            _object(version, "LocalQueue", local_queue, {"clusterQueue": team.namespace}, namespace=team.namespace)
        )
    return objects


def find_excess(pools: Sequence[CardPool], teams: Sequence[TeamQuota]) -> list[str]:
    """Returns one sentence for each flavor of which the teams may use more than the cards have."""
    found = []
    for pool in pools:
        sum_ = sum(team.gigabytes.get(pool.flavor, 0) for team in teams)
        if pool.gigabytes and sum_ > pool.gigabytes:
            found.append(
                f"flavor {one_line(pool.flavor)}: the teams' quotas are {sum_}Gi together, and slices can have "
                f"{pool.gigabytes}Gi: Kueue admits workloads that wait for room on the cards"
            )
    return found


def _spec_of(pool: CardPool) -> Json:
    return {"nodeLabels": dict(pool.node_labels)} if pool.node_labels else {}


def _cluster_queue(pools: Sequence[CardPool], team: TeamQuota, side: SideQuota, checked: bool) -> Json:
    amounts = {"cpu": side.cpu, "memory": side.memory}
    beside = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items() if amount]
    flavors = [
        {
            "name": pool.flavor,
            "resources": [
                *beside,
                {"name": CHARGED_RESOURCE, "nominalQuota": f"{team.gigabytes.get(pool.flavor, 0)}Gi"},
            ],
        }
        for pool in pools
    ]
    spec: Json = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}},
        "resourceGroups": [
            {"coveredResources": [*(each["name"] for each in beside), CHARGED_RESOURCE], "flavors": flavors}
        ],
    }
    if checked:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK_NAME}]}
    return spec


def _object(version: Version, kind: str, name: str, spec: Json, namespace: str = "") -> Json:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": metadata,
        **({"spec": spec} if spec else {}),
    }
