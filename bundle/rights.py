"""The rights of the operator: to apply its objects, and those that it grants to Tessera's processes.

Kubernetes lets nobody grant more than they have. So the operator has the rules of all Roles that it makes, word for
word. They hold in the whole cluster, because the Operator Lifecycle Manager grants rights in a namespace only in that
of the operator. On the objects that it applies, the operator has rights by name: server-side apply names the object
that it creates, so that ``resourceNames`` limits ``create`` too (kube-apiserver, handlers/patch.go).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import CLAIM_DRIVERS
from tessera.api.sharing.profile import MigStrategy
from tessera.cli.install.apply import DASHBOARD, OPTIONAL, option, optional_resource
from tessera.cli.install.manifests import CONFIG_ROLE, InstallChoices, Manifest
from tessera.cli.install.operator_process import operated_objects
from tessera.cli.install.ownership import FILES
from tessera.cli.install.variants import CERT_MANAGER
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.settings_reader import NamedConfig, OperatorSettings
from tessera.kube.resources import CONFIGMAPS
from tessera.kube.resources.meta import resource_for

Rule = Mapping[str, Any]

#: ConfigMaps of sharing profiles and MIG layouts: Tessera's own names, and those in NVIDIA's documentation and charts.
#: For other names, an administrator gives the operator the right to read them.
PROFILES = (
    "sharing-profiles",
    "device-plugin-config",
    "nvidia-time-slicing-config",
    "time-slicing-config",
    "time-slicing-config-all",
    "mps-config",
)
LAYOUTS = (
    "mig-layouts",
    "custom-mig-config",
    "default-mig-parted-config",
    "mig-parted-config",
    "nvidia-mig-config",
)

_APPLY = ("get", "create", "patch")
_ROLES = ("Role", "ClusterRole")


def cluster_rules() -> list[Rule]:
    """The operator's rules in the whole cluster: first those on its own objects, then those that it grants."""
    objects = every_object()
    return _unique([*_own_rules(objects), *granted_rules(objects)])


def namespace_rules(config_map: str) -> list[Rule]:
    """The operator's rules in its own namespace: to follow its settings."""
    return [_rule("", "configmaps", ("list", "watch"), [config_map])]


def every_object() -> list[Manifest]:
    """The objects that the operator applies with all options on; its Role for ConfigMaps has every known name."""
    data = {"key": "text"}
    settings = OperatorSettings(
        mig_strategy=MigStrategy.MIXED,
        sharing=NamedConfig(name=PROFILES[0], data=data),
        layouts=NamedConfig(name=LAYOUTS[0], data=data),
    )
    choices = InstallChoices(
        settings=settings,
        evict=True,
        replace_failed=1,
        authorities="PEM",
        node_groups="groups",
        repairs="repairs",
        openshift=True,
        dashboard=True,
        claim_driver=CLAIM_DRIVERS[0],
    )
    objects = operated_objects(choices)
    # The rules of the webhook's Roles differ with cert-manager, so both are needed.
    by_cert_manager = operated_objects(msgspec.structs.replace(choices, certificate=CERT_MANAGER))
    objects += [each for each in by_cert_manager if each not in objects]
    other_driver = operated_objects(msgspec.structs.replace(choices, claim_driver=CLAIM_DRIVERS[1]))
    objects += [each for each in other_driver if each["kind"] == "DeviceClass"]
    for each in objects:
        if each["kind"] == "Role" and each["metadata"]["name"] == CONFIG_ROLE:
            (rule,) = each["rules"]
            rule["resourceNames"] = [*PROFILES, *LAYOUTS]
    return objects


def granted_rules(objects: Iterable[Manifest]) -> Iterator[Rule]:
    """The rules of all Roles and ClusterRoles among the objects."""
    for each in objects:
        if each["kind"] in _ROLES:
            yield from each["rules"]


def _own_rules(objects: Sequence[Manifest]) -> Iterator[Rule]:
    names: dict[tuple[str, str], list[str]] = {}
    for each in objects:
        resource = resource_for(each)
        names.setdefault((resource.group, resource.plural), []).append(each["metadata"]["name"])
    names[CONFIGMAPS.group, CONFIGMAPS.plural] += [*PROFILES, *LAYOUTS]
    for (group, plural), found in names.items():
        yield _rule(group, plural, _APPLY, found)
    removable: dict[tuple[str, str], list[str]] = {}
    for kind, namespaced, name in OPTIONAL:
        resource = optional_resource(kind, namespaced=namespaced)
        removable.setdefault((resource.group, resource.plural), []).append(name)
    for each in option(DASHBOARD):
        resource = resource_for(each)
        removable.setdefault((resource.group, resource.plural), []).append(each["metadata"]["name"])
    for (group, plural), found in removable.items():
        yield _rule(group, plural, ("list", "delete"), found)
    yield _rule(CONFIGMAPS.group, CONFIGMAPS.plural, ("delete",), FILES)
    kinds = [CLUSTER_POLICIES.plural, NVIDIA_DRIVERS.plural]
    yield {"apiGroups": [CLUSTER_POLICIES.group], "resources": kinds, "verbs": [*_APPLY, "list", "delete"]}


def _rule(group: str, plural: str, verbs: Sequence[str], names: Iterable[str]) -> Rule:
    return {"apiGroups": [group], "resources": [plural], "resourceNames": sorted({*names}), "verbs": [*verbs]}


def _unique(rules: Iterable[Rule]) -> list[Rule]:
    found: list[Rule] = []
    for each in rules:
        if each not in found:
            found.append(each)
    return found


def covers(holder: Iterable[Rule], wanted: Rule) -> bool:
    """Whether the holder's rules contain every single right of a rule, as Kubernetes checks before a grant."""
    held = list(holder)
    if "nonResourceURLs" in wanted:
        return wanted in held
    return all(
        any(_allows(each, group, resource, verb, name) for each in held)
        for group in wanted["apiGroups"]
        for resource in wanted["resources"]
        for verb in wanted["verbs"]
        for name in wanted.get("resourceNames") or ("",)
    )


def _allows(rule: Rule, group: str, resource: str, verb: str, name: str) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        group in rule.get("apiGroups", ())
        and resource in rule.get("resources", ())
        and verb in rule["verbs"]
        and (not names or name in names)
    )
