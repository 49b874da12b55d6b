"""Requests for new nodes by ProvisioningRequests leave no template behind when a delete is cut off."""

import random
from typing import Any

import pytest
from tests.support.mortal_transport import ForwardingTransport
from tests.webhook.conftest import ADMIN, NAMESPACE, Lab, in_lab

from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.requests import Request, Response
from tessera.kube.resources import POD_TEMPLATES
from tessera.scale_up.node_requests import NodeRequest, ProvisioningRequests
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport

REQUEST = NodeRequest(name="r", uid="u", group="g", open=True, cards=False)


class NoRequestDeletes(ForwardingTransport):
    """Fails every delete of a ProvisioningRequest, as a broken connection does."""

    async def request(self, request: Request) -> Response:
        if request.method == "DELETE" and "provisioningrequests" in request.path:
            raise ConnectionError("cut off")
        return await super().request(request)


def test_a_request_outlives_its_template_so_that_its_delete_is_tried_again() -> None:
    async def story(lab: Lab) -> None:
        template: dict[str, Any] = {"metadata": {"name": "r"}, "template": {"spec": {"containers": [{"name": "c"}]}}}
        await lab.client.create(POD_TEMPLATES.as_dicts(), template, NAMESPACE)
        client = Client(NoRequestDeletes(InProcessTransport(lab.server, ADMIN)), field_manager="t", clock=lab.clock)
        runtime = KubeRuntime(client=client, clock=lab.clock, rng=random.Random(0), may_act=lambda: True)
        with pytest.raises(ConnectionError):
            await ProvisioningRequests(runtime, NAMESPACE).delete(REQUEST)
        with pytest.raises(NotFound):
            await lab.client.get(POD_TEMPLATES, "r", NAMESPACE)

    in_lab(story)


def test_a_request_that_the_server_refuses_leaves_no_template() -> None:
    """The server does not know the kind."""

    async def story(lab: Lab) -> None:
        runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=random.Random(0), may_act=lambda: True)
        spec = {"containers": [{"name": "c", "image": "i"}]}
        with pytest.raises(NotFound):
            await ProvisioningRequests(runtime, NAMESPACE).create("g", "r", spec, cards=False, version="")
        assert not (await lab.client.list(POD_TEMPLATES, NAMESPACE)).items

    in_lab(story)
