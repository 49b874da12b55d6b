"""The policy of agents spends no rule on the Event that each pod with a slice gets."""

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
    server: ApiServer, obj: Obj | None, *, node: str = "node-1", namespace: str = "team", old: Obj | None = None
) -> str:
    """The reason for which the policy refuses an agent's Event; empty if it admits it."""
    who = service_account_user("tessera-system", "tessera-agent")
    user = UserInfo(name=who.name, groups=who.groups, extra={NODE_NAME: (node,)} if node else {})
    operation = "CREATE" if old is None else "DELETE" if obj is None else "UPDATE"
    asked = Attributes(
        user=user, verb=operation.lower(), version="v1", resource="events", namespace=namespace, name="web-0.1"
    )
    assert server.parts.policies is not None
    try:
        server.parts.policies.validate(
            AdmissionRequest(attributes=asked, operation=operation, kind="Event", obj=obj, old=old)
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


def test_the_event_of_a_slice_costs_no_rule() -> None:
    assert judged(refusing(), event()) == ""
    assert judged(always_judged(), event()) == "", "what is spared would be admitted"


@pytest.mark.parametrize("case", JUDGED)
def test_every_other_event_of_an_agent_is_judged_as_before(case: str) -> None:
    obj, more = JUDGED[case]
    assert "judged" in judged(refusing(), copy.deepcopy(obj), **more)
    as_before = judged(always_judged(), copy.deepcopy(obj), **more)
    assert judged(serving(policies()), obj, **more) == as_before
