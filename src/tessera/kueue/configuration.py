"""Kueue's Configuration: the part by which it charges slices their GPU memory, whatever kind of workload asks.

Kueue computes what a workload asks for in three steps (Kueue documentation, "Resource transformations"): it adds the
requests of a pod's containers, drops resources whose name has an excluded prefix, and applies the transformations.
Pods and groups have the memory quota that Tessera's admission writes; a Job's template does not. So:

- every MIG resource is replaced by its memory in :data:`~tessera.kueue.names.CHARGED_RESOURCE`;
- our own resource is excluded, or pods would be refused or charged double;
- a prefix that would drop MIG resources before the transformation is taken out.

It must be able to charge the profiles of the cluster's cards, and those that its nodes offer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from tessera.api.instaslice import Instaslice
from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, profile_of, resource_of
from tessera.api.problems import FileRefused, Problem
from tessera.kube.resources import Node
from tessera.kueue.names import CHARGED_RESOURCE, CONFIGURATION_GROUP, Version
from tessera.mig.names import parse_profile_name, resource_spelling

#: Prefix of our resource, for ``excludeResourcePrefixes``.
OWN_PREFIX = QUOTA_RESOURCE.partition("/")[0] + "/"

Json = dict[str, Any]


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


#: Ending of the resource of shares of slices; a share is not charged the slice's memory.
_SHARED = ".shared"


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
