"""Pods with ResourceClaims on a server, for the conformance tests."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.conformance_api import MERGE, Api
from tests.support.device_claims import API, FINALIZER, allocation, claim, claim_template, claiming_pod, exactly

Obj = dict[str, Any]
DRIVER = "gpu.tessera.dev"
GATE = "tessera.dev/placement"
OF_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "one"}
#: Seconds in which a controller of an idle cluster would have acted.
SETTLED = 1.0


class Claims:
    """Claims and pods of one namespace."""

    def __init__(self, api: Api, namespace: str, label: str) -> None:
        self.api = api
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.claims = f"{API}/namespaces/{namespace}/resourceclaims"
        self.templates = f"{API}/namespaces/{namespace}/resourceclaimtemplates"
        self._label = label

    async def pod(
        self, name: str, *entries: Obj, gated: bool = False, cpu: str = "", limits: Obj | None = None, **spec: Any
    ) -> Obj:
        """Creates a pod that can only go to the test's nodes."""
        given = {"nodeSelector": {"tessera-test": self._label}, "terminationGracePeriodSeconds": 0, **spec}
        body = claiming_pod(name, *entries, gates=(GATE,) if gated else (), **given)
        resources = body["spec"]["containers"][0]["resources"]
        resources |= {"requests": {"cpu": cpu}} if cpu else {}
        resources |= {"limits": limits} if limits else {}
        made: Obj = (await self.api("POST", self.pods, body)).ok()
        return made

    async def templated(self, name: str, **options: Any) -> str:
        """Creates a pod with a claim of a template; returns the claim's name."""
        await self.api("POST", self.templates, claim_template("one", exactly("gpu", "gpus")))
        await self.pod(name, OF_TEMPLATE, **options)
        return await self.name_of(name)

    async def name_of(self, pod: str) -> str:
        """The name of a pod's claim, as its status has it."""
        found = await self.api.until(
            f"{self.pods}/{pod}", lambda answer: bool(answer.body["status"].get("resourceClaimStatuses"))
        )
        return str(found.body["status"]["resourceClaimStatuses"][0]["resourceClaimName"])

    async def named(self, name: str, *entries: Obj) -> None:
        """Creates a claim."""
        (await self.api("POST", self.claims, claim(name, *(entries or (exactly("gpu", "gpus"),))))).ok()

    async def allocate(self, name: str, node: str, device: str = "gpu-0", **options: Any) -> None:
        """Writes the finalizer and an allocation."""
        protect = {"metadata": {"finalizers": [FINALIZER]}}
        (await self.api("PATCH", f"{self.claims}/{name}", protect, content=MERGE)).ok()
        status = {"allocation": allocation(DRIVER, node, device, **options)}
        (await self.status(name, status)).ok()

    async def status(self, name: str, status: Obj) -> Any:
        """Writes a claim's status."""
        return await self.api("PATCH", f"{self.claims}/{name}/status", {"status": status}, content=MERGE)

    async def ungate(self, pod: str) -> None:
        """Removes the pod's gate."""
        change = {"spec": {"schedulingGates": None}}
        (await self.api("PATCH", f"{self.pods}/{pod}", change, content=MERGE)).ok()

    async def bound(self, pod: str) -> str:
        """The pod's node, once it has one."""
        found = await self.api.until(f"{self.pods}/{pod}", lambda answer: bool(answer.body["spec"].get("nodeName")))
        return str(found.body["spec"]["nodeName"])

    async def refused(self, pod: str, reason: str = "Unschedulable") -> str:
        """The message of the pod's condition PodScheduled, once it is false for that reason."""

        def find(body: Obj) -> str:
            for each in body["status"].get("conditions") or ():
                if each["type"] == "PodScheduled" and each["status"] == "False" and each["reason"] == reason:
                    return str(each["message"])
            return ""

        return find((await self.api.until(f"{self.pods}/{pod}", lambda answer: bool(find(answer.body)))).body)

    async def delete(self, pod: str) -> None:
        """Deletes a pod at once, as no kubelet confirms its end."""
        await self.api("DELETE", f"{self.pods}/{pod}?gracePeriodSeconds=0")

    async def until(self, name: str, found: Callable[[Obj], bool]) -> Obj:
        """The claim, once it satisfies."""
        claim_now: Obj = (await self.api.until(f"{self.claims}/{name}", lambda answer: found(answer.body))).body
        return claim_now

    async def get(self, name: str) -> Obj:
        """The claim after a while in which controllers could have acted."""
        await asyncio.sleep(SETTLED)
        found: Obj = (await self.api("GET", f"{self.claims}/{name}")).ok()
        return found
