"""The rights that ``deploy/rbac.yaml`` grants are those that the source asks for: no call without one, none unused.

Each other form of installation makes the same objects: :mod:`tests.charts.test_every_form`.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tests.deploy.conftest import ROOT, Installation, Obj, rendered

import tessera
from tessera.api import instaslice, queues
from tessera.api import pod_annotations as gangs
from tessera.controller.cluster import volumes
from tessera.dra import claims, resource_slices
from tessera.gpu_operator import assignment as driver_assignment
from tessera.kube import resources
from tessera.kube.resources import Resource
from tessera.kueue import objects
from tessera.kueue.objects import VISIBILITY_GROUP

Right = tuple[str, str]  # verb, plural or plural/subresource

SOURCE = Path(tessera.__file__).parent
#: Where resources are defined.
ROOMS = (resources, instaslice, driver_assignment, objects, queues, gangs, volumes)
#: What each process is made of, as far as it talks to the API server.
MADE_OF = {
    "tessera-agent": ("agent", "claims/agent", "access/reviewer.py", "kube/event_recorder.py"),
    "tessera-controller": (
        *("controller", "claims/controller", "forecast/queue", "handover", "scale_up", "signals"),
        *(f"kueue/{room}.py" for room in ("satellite", "check_decisions", "queued_workload")),
        *(f"driver/{room}" for room in ("executor.py", "policies.py", "satellite.py", "next_kernels.py")),
        *(f"driver/{room}" for room in ("rollout", "build", "registry/credentials.py")),
        *(f"provisioning/{room}" for room in ("satellite.py", "recording.py", "startup_taints.py")),
        *("usage/satellite.py", "access/page_reader.py", "access/reviewer.py"),
        "kube/event_recorder.py",
        "kube/leader_election.py",
    ),
    "tessera-webhook": ("webhook", "claims/admission.py"),
    "tessera-dashboard": (
        "dashboard",
        "access",
        *("access/page_reader.py", "access/reviewer.py", "explain/order_objects.py", "kueue/waiting_workloads.py"),
    ),
}
#: Where the rights of a process stand, if not in deploy/.
GRANTED_BY = {"tessera-dashboard": "deploy/options/dashboard"}
#: Rights for requests whose path is written out: Kueue's visibility API.
BY_PATH = {"tessera-dashboard": {("get", "localqueues/pendingworkloads")}}
#: Granted by deploy/options/evict.yaml only.
EVICTS_BY_OPTION = ("tessera-agent",)
#: What needs the rights of deploy/options/replace.yaml.
REPLACES_BY_OPTION = "provisioning/replacement.py"
#: Subresources of requests that a process makes by their path, to the verbs that they need.
BY_SUBRESOURCE = {"proxy": "get", "token": "create"}
#: Methods of :class:`tessera.kube.client.Client`, and the informer, to the verbs that they need.
VERBS = {
    "get": ("get",),
    "list": ("list",),
    "list_allowed": ("list",),
    "_list": ("list",),  # reads one page, or what concerns one object
    "page": ("list",),
    "create": ("create",),
    "merge_patch": ("patch",),
    "apply": ("patch",),
    "delete": ("delete",),
    "Informer": ("list", "watch"),
    "ObjectInformer": ("list", "watch"),
    "_watch": ("list", "watch"),  # of ClusterInput, which makes an informer
    "OptionalKind": ("list", "watch"),
}


def calls(process: str) -> Iterator[ast.Call]:
    for part in MADE_OF.get(process, (process,)):
        path = SOURCE / part
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert files, f"{part} is no part of Tessera"
        for file in files:
            yield from (each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Call))


def asked(process: str, rooms: Sequence[ModuleType] = ROOMS) -> Iterator[Right]:
    for call in calls(process):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if method == "list" and isinstance(call.func, ast.Name):
            continue  # Python's own
        parts = [part for argument in call.args for part in ast.walk(argument)]
        named = [each.id for each in parts if isinstance(each, ast.Name) and each.id.isupper()]
        kinds = [kind for name in named if isinstance(kind := constant(name, rooms), Resource)]
        if method == "evict":
            if rooms is ROOMS and process not in EVICTS_BY_OPTION:
                yield "create", "pods/eviction"
        elif method == "path":
            made = {name for each in parts for name in BY_SUBRESOURCE if _begins(each, name)}
            yield from (
                (BY_SUBRESOURCE[name], f"{kind.plural}/{name}") for name in made for kind in receivers(call, rooms)
            )
        elif method in VERBS and kinds:
            given = [each.value for each in call.keywords if each.arg == "subresource"]
            for below in subresources(given[0]) if given else [""]:
                yield from ((verb, kind.plural + below) for verb in VERBS[method] for kind in kinds)


def _begins(part: ast.AST, name: str) -> bool:
    """True for the subresource of a request that a process makes by its path."""
    return isinstance(part, ast.Constant) and str(part.value).startswith(name)


def receivers(call: ast.Call, rooms: Sequence[ModuleType]) -> Iterator[Resource[Any]]:
    """The resource of ``PODS.path(...)``."""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        kind = constant(call.func.value.id, rooms)
        if isinstance(kind, Resource):
            yield kind


def constant(name: str, rooms: Sequence[ModuleType]) -> object:
    return next((found for room in rooms if (found := getattr(room, name, None)) is not None), None)


def subresources(value: ast.expr) -> list[str]:
    """The possible values of an argument, which is a text, or a choice between texts and None."""
    if isinstance(value, ast.IfExp):
        return subresources(value.body) + subresources(value.orelse)
    below = ast.literal_eval(value)
    return [f"/{below}" if below else ""]


def granted(installation: Installation, account: str) -> Iterator[Right]:
    for role in roles_of(installation, account):
        for rule in role["rules"]:
            yield from ((verb, resource) for resource in rule.get("resources", ()) for verb in rule["verbs"])


def roles_of(installation: Installation, account: str) -> Iterator[Obj]:
    for binding in installation.of_kind("RoleBinding", "ClusterRoleBinding"):
        if any(subject["name"] == account for subject in binding["subjects"]):
            role = binding["roleRef"]
            yield installation.one(role["kind"], role["name"], binding["metadata"].get("namespace"))


@pytest.mark.parametrize("process", MADE_OF)
def test_every_call_has_its_right_and_every_right_its_call(process: str) -> None:
    assert set(granted(installation_of(process), process)) == set(asked(process)) | BY_PATH.get(process, set())


def installation_of(process: str) -> Installation:
    return rendered(GRANTED_BY.get(process, "deploy"))


def test_one_client_reads_pages_through_the_proxy() -> None:
    texts = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert {path for path, text in texts.items() if re.search('f"[^"]*proxy[{/]', text)} == {
        Path("access/page_reader.py"),
    }


def test_each_policy_that_confines_an_account_is_in_force() -> None:
    deploy = rendered("deploy")
    bound = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in deploy.of_kind("ValidatingAdmissionPolicyBinding")
    }
    assert bound == {each["metadata"]["name"]: ["Deny"] for each in deploy.of_kind("ValidatingAdmissionPolicy")}


@pytest.mark.parametrize("process", MADE_OF)
def test_groups_are_those_of_the_resources(process: str) -> None:
    known = [each for room in ROOMS for each in vars(room).values() if isinstance(each, Resource)]
    groups: dict[str, set[str]] = {"localqueues/pendingworkloads": {VISIBILITY_GROUP}}
    for each in known:
        groups.setdefault(each.plural, set()).add(each.group)
    for role in roles_of(installation_of(process), process):
        for rule in role["rules"]:
            for resource in rule["resources"]:
                assert set(rule["apiGroups"]) == groups.get(resource, groups[resource.partition("/")[0]])


def test_the_rights_to_replace_nodes_are_those_that_replacing_them_takes() -> None:
    role, binding = yaml.load_all((ROOT / "deploy" / "options" / "replace.yaml").read_text(), yaml.CSafeLoader)
    rights = {(verb, each) for rule in role["rules"] for each in rule["resources"] for verb in rule["verbs"]}
    assert rights == set(asked(REPLACES_BY_OPTION))
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == ["tessera-controller"]


def test_the_rights_to_serve_claims_are_those_that_serving_them_takes() -> None:
    objects = list(yaml.load_all((ROOT / "deploy" / "options" / "claims.yaml").read_text(), yaml.CSafeLoader))
    roles = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ClusterRole"}
    rights = {
        name: {(verb, each) for rule in role["rules"] for each in rule["resources"] for verb in rule["verbs"]}
        for name, role in roles.items()
    }
    assert rights["tessera-agent-claims"] == set(asked("tessera-agent", (claims, resource_slices)))
    taken = set(asked("tessera-controller", (claims, resource_slices)))
    assert taken <= rights["tessera-controller-claims"]
    assert {each for _, each in rights["tessera-controller-claims"]} == {
        "deviceclasses",
        "resourceslices",
        "resourceclaims",
        "resourceclaims/status",
        "resourceclaims/binding",
    }
    assert rights["tessera-webhook-claims"] == set(asked("tessera-webhook", (claims,)))
    bound = {each["roleRef"]["name"]: each["subjects"] for each in objects if each["kind"] == "ClusterRoleBinding"}
    assert {name: [each["name"] for each in subjects] for name, subjects in bound.items()} == {
        "tessera-agent-claims": ["tessera-agent"],
        "tessera-controller-claims": ["tessera-controller"],
        "tessera-webhook-claims": ["tessera-webhook"],
    }


def test_a_name_limits_no_create_which_has_none_to_be_compared(installation: Installation) -> None:
    for role in installation.of_kind("Role", "ClusterRole"):
        for rule in role["rules"]:
            named = "resourceNames" in rule and "create" in rule["verbs"]
            assert not named or rule["resources"] == ["serviceaccounts/token"]  # its account is in the path


def test_nothing_is_granted_by_wildcard(installation: Installation) -> None:
    for role in installation.of_kind("Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in {text for texts in rule.values() for text in texts}
