"""Checks of the objects that an installation has: those of the manifests, so that no kind of them can be forgotten.

The forms of installation leave out objects by choice, but only a group of them as a whole: a policy with its binding,
the policies of networks, the flow schemas, and the live page with the API for tenants. So an object is missed while
another one of each of its groups is there. What the version of this command installs is looked for.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from tessera import __version__
from tessera.doctor.facts import ClusterFacts, Finding, Object, Refusal, error, not_examined, ok, warning
from tessera.doctor.manifests import install_manifests, page_manifests
from tessera.kube.resources import CRDS, DEPLOYMENTS, MUTATING_WEBHOOKS
from tessera.kube.resources.meta import Resource, resource_for
from tessera.text import REINSTALL, list_names

#: The bindings of admission policies, as ``PLURAL.GROUP``.
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
_POLICY, _BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
#: Bindings of the admission policies, with the effect of each.
POLICIES: Mapping[str, str] = {
    "tessera-agent": "a stolen token of an agent can write other nodes",
    "tessera-driver": "a stolen token of a driver's pod can label other nodes",
    "tessera-namespaces": "who may change a namespace can exempt it from the policies, or give it another team's share",
    "tessera-pins": "a tenant's pod can leave the queue, or hold cards on which it does not run",
    "tessera-device-access": "pods may use GPUs without a request",
}
#: Kinds whose objects are read as a whole, for checks of their own.
_READ_WHOLE = frozenset({CRDS.kind, MUTATING_WEBHOOKS.kind})
#: Kinds whose objects are a protection that an installation has or has not, with what is missing without it.
_PROTECTIONS: Mapping[str, str] = {
    "FlowSchema": "requests of controller and agents wait behind those of others",
    "NetworkPolicy": "every pod may reach the ports of Tessera's pods",
}
_BY_CHOICE = "install again with all of them, if this is not your choice (docs/protections.md)"
_PAGE = "the live page and the API for tenants"
#: Objects that a text names.
_NAMED = 6


class _Key(NamedTuple):
    """Kind, namespace and name of an object; the namespace is empty for a kind without any."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """``role/tessera-agent in tessera-system``."""
        return f"{self.kind.lower()}/{self.name}{f' in {self.namespace}' if self.namespace else ''}"


@cache
def _expected() -> Mapping[_Key, Resource[dict[str, Any]]]:
    """The objects of an installation with everything, in the order of the manifests, with their kinds."""
    return {_key(each): resource_for(each) for each in (*install_manifests(), *page_manifests())}


def _key(manifest: Mapping[str, Any]) -> _Key:
    metadata = manifest["metadata"]
    return _Key(manifest["kind"], metadata.get("namespace", ""), metadata["name"])


@cache
def _groups() -> Mapping[str, frozenset[_Key]]:
    """The groups that an installation may leave out, by what they are in words, by the policy, or by the kind."""
    every = _expected()
    policies = {name: frozenset(_Key(kind, "", name) for kind in (_POLICY, _BINDING)) for name in POLICIES}
    kinds = {kind: frozenset(key for key in every if key.kind == kind) for kind in _PROTECTIONS}
    return {_PAGE: frozenset(map(_key, page_manifests())), **policies, **kinds}


def places() -> Sequence[tuple[Resource[dict[str, Any]], str]]:
    """The kinds and namespaces in which the objects are looked for; the namespace is empty for a kind without any."""
    listed = {(key.kind, key.namespace): kind for key, kind in _expected().items() if key.kind not in _READ_WHOLE}
    return [(kind, namespace) for (_, namespace), kind in listed.items()]


def deployments(facts: ClusterFacts) -> Sequence[str]:
    """The names of the Deployments that should have pods: those of the manifests that are not known to be absent."""
    absent = _absent(facts)
    return [key.name for key in _expected() if key.kind == DEPLOYMENTS.kind and key not in absent]


def check_objects(facts: ClusterFacts) -> Iterator[Finding]:
    """Yields what of the installation's objects is missing, the definitions and the policies first."""
    yield _definitions(facts.definitions)
    yield _policies(facts.bindings)
    absent = _absent(facts)
    left_out = [name for name, group in _groups().items() if group <= absent]
    missing = absent.difference(*(_groups()[name] for name in left_out))
    told = [str(key) for key in _expected() if key in missing and key.kind != _BINDING]
    refused = {
        kind.label: found
        for kind, namespace in places()
        if isinstance(found := _names(facts, kind, namespace), Refusal)
    }
    if told:
        text = f"missing of what version {__version__} installs: {list_names(told, _NAMED)}"
        yield error("objects", text, REINSTALL, told)
    elif not refused:
        but = f", but {_PAGE}, which it leaves out" if _PAGE in left_out else ""
        yield ok("objects", f"the installation has all{but}")
    if refused:
        yield not_examined("objects", next(iter(refused.values())), needs=f"list {', '.join(refused)}")
    if unprotected := [f"{kind}: {what}" for kind, what in _PROTECTIONS.items() if kind in left_out]:
        yield warning("protections", f"left out: {'; '.join(unprotected)}", _BY_CHOICE)


def _absent(facts: ClusterFacts) -> frozenset[_Key]:
    """The objects that the cluster is known to lack; of a kind that it does not know, all."""
    return frozenset(
        key
        for key, kind in _expected().items()
        if key.kind not in _READ_WHOLE
        and not isinstance(names := _names(facts, kind, key.namespace), Refusal)
        and key.name not in names
    )


def _names(facts: ClusterFacts, kind: Resource[dict[str, Any]], namespace: str) -> Collection[str] | Refusal:
    if kind.kind == _BINDING:
        return facts.bindings
    found = facts.names[kind.label, namespace]
    return () if isinstance(found, Refusal) and found.missing else found


def _definitions(definitions: Sequence[Object] | Refusal) -> Finding:
    if isinstance(definitions, Refusal):
        return not_examined("definitions", definitions)
    there = {each["metadata"]["name"]: each for each in definitions}
    wanted = [key.name for key in _expected() if key.kind == CRDS.kind]
    missing = [name for name in wanted if name not in there]
    waiting = [name for name in wanted if name in there and not has_condition(there[name], "Established")]
    if missing or waiting:
        lists = {"missing": missing, "not served yet": waiting}
        text = "; ".join(f"{what}: {', '.join(names)}" for what, names in lists.items() if names)
        return error("definitions", text, REINSTALL)
    return ok("definitions", "all kinds are served")


def has_condition(item: Object, kind: str) -> bool:
    """True if an object has a condition of this type, and it is true."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == kind and each.get("status") == "True" for each in conditions)


def _policies(bindings: Sequence[str] | Refusal) -> Finding:
    if isinstance(bindings, Refusal):
        return not_examined("policies", bindings)
    missing = [f"{name}: {what}" for name, what in POLICIES.items() if name not in bindings]
    if missing:
        return warning("policies", f"not in force: {'; '.join(missing)}", _BY_CHOICE)
    return ok("policies", "agents and drivers are confined to their nodes, and pods to the GPUs that they ask for")
