"""The policy of agents spends no rule on what each pod with a slice brings: an Event, an Instaslice's status."""

import copy
from typing import Any

import pytest
import yaml
from tests.deploy.conftest import ROOT
from tests.deploy.test_device_access import serving

from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.interfaces import AdmissionRequest, Attributes, UserInfo
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.status import StatusError

Obj = dict[str, Any]
NODE_NAME = "authentication.kubernetes.io/node-name"


def policies() -> list[Obj]:
    return list(yaml.load_all((ROOT / "deploy" / "policies" / "agent.yaml").read_text(), yaml.CSafeLoader))


def always_judged() -> ApiServer:
    """A server whose policy judges all that an agent writes."""
    changed = policies()
    user = "request.userInfo.username == 'system:serviceaccount:tessera-system:tessera-agent'"
    changed[0]["spec"]["matchConditions"] = [{"name": "an-agent", "expression": user}]
    return serving(changed)


def refusing() -> ApiServer:
    """A server whose policy refuses whatever it judges."""
    changed = policies()
    changed[0]["spec"]["validations"] = [{"expression": "false", "message": "judged"}]
    return serving(changed)


def event(kind: str = "Pod", component: str = "tessera-agent", instance: str = "node-1") -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web-0.1", "namespace": "team"},
        "involvedObject": {"kind": kind, "name": "node-2" if kind == "Node" else "web-0"},
        "reason": "SliceReady",
        "source": {"component": component},
        "reportingInstance": instance,
    }


def without(name: str) -> Obj:
    made = event()
    del made[name]
    return made


def judged(
    server: ApiServer,
    obj: Obj | None,
    *,
    node: str = "node-1",
    namespace: str = "team",
    old: Obj | None = None,
    of: tuple[str, ...] = ("", "v1", "events", ""),
) -> str:
    """The reason for which the policy refuses an agent's write, of an Event or ``of``; empty if it admits it."""
    who = service_account_user("tessera-system", "tessera-agent")
    user = UserInfo(name=who.name, groups=who.groups, extra={NODE_NAME: (node,)} if node else {})
    operation = "CREATE" if old is None else "DELETE" if obj is None else "UPDATE"
    group, version, resource, subresource = of
    named = obj or old
    assert named is not None
    asked = Attributes(
        user=user,
        verb=operation.lower(),
        group=group,
        version=version,
        resource=resource,
        subresource=subresource,
        namespace=namespace,
        name=named["metadata"]["name"],
    )
    assert server.parts.policies is not None
    try:
        server.parts.policies.validate(
            AdmissionRequest(attributes=asked, operation=operation, kind=named["kind"], obj=obj, old=old)
        )
    except StatusError as error:
        return str(error)
    return ""


JUDGED: dict[str, tuple[Obj | None, dict[str, Any]]] = {
    "about a node": (event("Node"), {}),
    "about no kind": (event(""), {}),
    "about nothing": ({**event(), "involvedObject": {}}, {}),
    "in another's name": (event(component="kubelet"), {}),
    "in no name": (without("source"), {}),
    "of another node": (event(instance="node-2"), {}),
    "of no node": (without("reportingInstance"), {}),
    "by a token without a node": (event(instance=""), {"node": ""}),
    "by a token without a node, of a node": (event(), {"node": ""}),
    "in a namespace of Kubernetes": (event(), {"namespace": "kube-system"}),
    "a repeat": (event(), {"old": event()}),
    "a repeat of another's": (event(), {"old": event(component="kubelet")}),
    "a deletion": (None, {"old": event()}),
}


@pytest.mark.parametrize("kind", ["Pod", "ResourceClaim"])
def test_the_event_of_a_slice_costs_no_rule(kind: str) -> None:
    assert judged(refusing(), event(kind)) == ""
    assert judged(always_judged(), event(kind)) == "", "what is spared would be admitted"


@pytest.mark.parametrize("case", JUDGED)
def test_every_other_event_of_an_agent_is_judged_as_before(case: str) -> None:
    obj, more = JUDGED[case]
    assert "judged" in judged(refusing(), copy.deepcopy(obj), **more)
    as_before = judged(always_judged(), copy.deepcopy(obj), **more)
    assert judged(serving(policies()), obj, **more) == as_before


INSTASLICE = ("inference.redhat.com", "v1alpha1", "instaslices", "")
STATUS = (*INSTASLICE[:3], "status")


def instaslice(node: str) -> Obj:
    return {"apiVersion": "inference.redhat.com/v1alpha1", "kind": "Instaslice", "metadata": {"name": node}}


def test_the_status_of_the_own_instaslice_costs_no_rule() -> None:
    own = instaslice("node-1")
    assert judged(refusing(), own, old=own, of=STATUS) == ""
    assert judged(always_judged(), own, old=own, of=STATUS) == "", "what is spared would be admitted"


@pytest.mark.parametrize("node", ["node-1", "node-2", ""])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_every_other_instaslice_of_an_agent_is_judged_as_before(operation: str, node: str) -> None:
    if operation == "UPDATE" and node == "node-1":
        return
    old, obj = (None if operation == "CREATE" else instaslice("node-1")), instaslice("node-1")
    given = None if operation == "DELETE" else obj
    of = STATUS if operation == "UPDATE" else INSTASLICE
    assert "judged" in judged(refusing(), given, node=node, old=old, of=of)
    as_before = judged(always_judged(), given, node=node, old=old, of=of)
    assert judged(serving(policies()), given, node=node, old=old, of=of) == as_before
    assert bool(as_before) is (node != "node-1")
