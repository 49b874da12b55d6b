"""Objects that no honest component would write, made from a seed: what a broken or hostile node or tenant can store.

Most fields are what they should be, so that the rest gets past the first look; some are anything.
"""

import random
from typing import Any

import msgspec

from tessera.api.names import GATE
from tessera.mig.models import model_by_short_name

NODES = ("n1", "n2", "n3")
PODS = ("a", "b", "c", "d")
PROFILES = ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
CARDS = ("GPU-0", "GPU-1")
NUMBERS = (-1, -(2**63), 2**31, 2_000_000_000, 2**63 - 1, 8, 9, 64)
TEXTS = ("", "\x00", "x" * 300, "1g.5gb", "GPU-0", "\u202e", "999999999999g.5gb", "0g.0gb", "-1", "1e400", "\U0001f600")
QUANTITIES = ("1", "0", "-1", "1e30", "1e31", "9" * 64, "9" * 65, "x", "", "1.5Gi", "0.1", "1m", "1n", "+1", "1e-30")


class Forger:
    """One stream of forged objects.

    Args:
        seed: the same seed gives the same objects.
        badness: how often a field is anything, from 0 to 1.
    """

    def __init__(self, seed: int, badness: float | None = None) -> None:
        self.chance = random.Random(seed)
        self.badness = self.chance.choice((0.0, 0.02, 0.05, 0.2)) if badness is None else badness
        self._version = 0

    def pick(self, *values: Any) -> Any:
        """One of these, or now and then anything at all."""
        return self.anything() if self.chance.random() < self.badness else self.chance.choice(values)

    def anything(self) -> Any:
        """A value of any type."""
        return self.chance.choice(
            (
                None,
                True,
                1.5,
                [],
                {},
                [None],
                {"a": None},
                self.chance.choice(NUMBERS),
                self.chance.choice(TEXTS),
                self.chance.choice(TEXTS),
                self.chance.randint(-3, 10),
            )
        )

    def some(self, make: Any, most: int = 3) -> list[Any]:
        """A few of something."""
        return [make() for _ in range(self.chance.randint(0, most))]

    # Objects

    def meta(self, name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
        """Metadata; versions grow but for a few."""
        self._version += 1
        version = self.pick(*[str(self._version)] * 9, str(self.chance.randint(0, self._version)))
        uid = f"uid-{name}" + self.pick("", "", "", "", "", "", "-2")[:2] if self.badness == 0 else f"uid-{name}"
        found = {"name": name, "uid": uid, "resourceVersion": version, **more}
        return {**found, "namespace": namespace} if namespace else found

    def slice(self) -> Any:
        """One slice of a record."""
        profile = self.chance.choice(PROFILES)
        row = model_by_short_name("A100-40GB").geometry.profile(profile)
        return self.pick(
            {
                "id": self.pick("0", "1"),
                "profile": self.pick(profile),
                "gpuUUID": self.pick(*CARDS),
                "start": self.pick(*row.starts, self.chance.randint(0, 7)),
                "size": self.pick(*[row.size] * 5, self.chance.randint(1, 8)),
            }
        )

    def held(self) -> Any:
        """One slice without a promise."""
        found = self.slice()
        return (
            {**found, "podUID": self.pick("", *(f"uid-{name}" for name in PODS))} if isinstance(found, dict) else found
        )

    def request(self, uid: str) -> Any:
        """A promise."""
        slices = self.some(self.slice)
        ref = {"kind": "Pod", "namespace": self.pick("default"), "name": self.pick(*PODS), "uid": self.pick(uid)}
        found = {"profile": self.pick(*PROFILES), "resources": self.pick({}, {"requests": {"cpu": "1"}}), "podRef": ref}
        return self.pick({**found, "slices": slices} if slices or self.chance.random() < 0.5 else found)

    def result(self) -> Any:
        """The state of a promise."""
        at = self.chance.randint(0, 7)
        return self.pick(
            {
                "allocationStatus": {
                    "allocationStatusController": self.pick("creating", "ungated", "deleting", ""),
                    "allocationStatusDaemonset": self.pick("", "created", "deleted"),
                },
                "configMapResourceIdentifier": self.pick("x"),
                "gpuUUID": self.pick(*CARDS),
                "migPlacement": self.pick({"start": self.pick(at), "size": self.pick(1, 2, 4)}),
                "nodename": self.pick(*NODES),
                **({"slices": self.pick(self.some(self.slice))} if self.chance.random() < 0.3 else {}),
            }
        )

    def table(self) -> Any:
        """Returns a table of the starts of profiles, with wrong values now and then."""
        rows: dict[str, Any] = {}
        for row in model_by_short_name(self.chance.choice(("A100-40GB", "A100-40GB", "A30"))).geometry.profiles:
            places = [{"start": self.pick(start), "size": self.pick(row.size)} for start in row.starts]
            name = self.pick(row.name) if self.badness > 0.1 else row.name
            rows[str(name)] = self.pick(
                {"placements": self.pick(places), "giProfileId": self.pick(5), "ciProfileId": self.pick(0)}
            )
        return self.pick(rows)

    def instaslice(self, node: str) -> dict[str, Any]:
        """A node's object."""
        uids = [f"uid-{name}" for name in PODS]
        requests = {uid: self.request(uid) for uid in uids if self.chance.random() < 0.4}
        results = {uid: self.result() for uid in uids if self.chance.random() < 0.4}
        gpus = [
            {"gpuUuid": self.pick(card), "gpuName": self.pick("A100"), "gpuMemory": self.pick("40960Mi")}
            for card in CARDS[: self.chance.randint(0, 2)]
        ]
        if gpus and self.chance.random() < 0.1:
            gpus[0]["migPlacement"] = self.table()
        resources = {
            "nodeGpus": self.pick(gpus),
            "migPlacement": self.table(),
            "bootId": self.pick("b1", "b2"),
            "foreign": self.pick(self.some(self.held)),
        }
        return {
            "metadata": self.meta(node, "instaslice-system"),
            "spec": self.pick({"podAllocationRequests": self.pick(requests)}),
            "status": self.pick({"podAllocationResults": self.pick(results), "nodeResources": self.pick(resources)}),
        }

    def offers(self) -> str:
        """The annotation of a node."""
        offer = {
            "resource": self.pick("nvidia.com/mig-1g.5gb", "nvidia.com/gpu", "example.com/gpu"),
            "kind": self.pick("whole", "share", "slice", "dynamic-slice"),
            "product": self.pick("NVIDIA A100-SXM4-40GB", "Tesla T4"),
            "cardMemoryMib": self.pick(40960, 0),
            "memoryMib": self.pick(4864, 0),
            "computeCapability": self.pick("8.0", "999.999"),
            "count": self.pick(7, 0),
            "replicas": self.pick(1, 65536),
            "profile": self.pick("1g.5gb", "7c.1g.5gb", "9" * 60 + "g.5gb", ""),
        }
        text = msgspec.json.encode(self.pick([offer], [])).decode()
        return self.chance.choice(
            (text, text, text, text[: len(text) // 2], "[" * 40_000, "\U0001f600", "[" + "{}," * 999)
        )

    def taint(self) -> Any:
        """A taint."""
        effect = self.pick("NoSchedule", "NoExecute", "PreferNoSchedule")
        return self.pick({"key": self.pick("k", ""), "value": self.pick("v", ""), "effect": effect})

    def node(self, name: str) -> dict[str, Any]:
        """A node."""
        labels = {
            "kubernetes.io/hostname": self.pick(*[name] * 8, *NODES),
            "nvidia.com/mig.config": self.pick(*["dynamic"] * 5, "dynamic-x", "all-1g.5gb", "x" * 300),
            "nvidia.com/mig.config.state": self.pick("success", "failed"),
            "number": self.pick("1", "-1", "9" * 5000),
        }
        labels = {key: value for key, value in labels.items() if self.chance.random() < 0.9}
        amounts = {
            "cpu": self.pick("64", *QUANTITIES),
            "memory": self.pick("512Gi"),
            "pods": self.pick("110"),
            "nvidia.com/mig-1g.5gb": self.pick("7", "0", *QUANTITIES),
            "nvidia.com/mig-" + self.pick("x", "1g.5gb.me") if self.badness == 0 else "nvidia.com/mig-": self.pick("1"),
        }
        annotations = self.pick({"tessera.dev/offers": self.offers()}, {})
        ready = {"type": self.pick("Ready"), "status": self.pick(*["True"] * 6, "False", "Unknown")}
        told = {"type": "GpuInstasliceValid", "status": self.pick("False", "True"), "message": self.pick("m", "")}
        return {
            "metadata": self.meta(name, labels=self.pick(labels), annotations=annotations),
            "spec": self.pick({"taints": self.some(self.taint), "unschedulable": self.pick(False, False, False, True)}),
            "status": self.pick(
                {
                    "allocatable": self.pick(amounts),
                    "capacity": self.pick(amounts),
                    "conditions": self.pick([ready], [ready, told]),
                    "nodeInfo": self.pick({"bootID": "b1", "kernelVersion": self.pick("5.14"), "osImage": "Ubuntu"}),
                }
            ),
        }

    def expression(self) -> Any:
        """One test of an affinity."""
        values = self.some(lambda: self.pick("1", "a", "9" * 5000, "n1"))
        operator = self.pick("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
        return self.pick({"key": self.pick("number", "k", "metadata.name"), "operator": operator, "values": values})

    def pod(self, name: str) -> dict[str, Any]:
        """A pod."""
        resource = "nvidia.com/mig-" + str(self.pick(*PROFILES)).replace("+", ".")
        count = self.pick(*["1"] * 5, "2", "8", "513", *QUANTITIES)
        limits = {resource: count, "cpu": self.pick("1", *QUANTITIES)}
        resources = self.pick({"limits": limits, "requests": self.pick(limits, {})})
        term = {"matchExpressions": self.some(self.expression), "matchFields": self.some(self.expression, 1)}
        required = {"nodeSelectorTerms": self.pick([term], [])}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": self.pick(required, None)}}
        gates = self.pick(*[[{"name": GATE}]] * 4, [], [{"name": GATE}, {"name": "other"}])
        spec = {
            "schedulingGates": gates,
            "nodeName": "" if gates else self.pick("", *NODES),
            "containers": self.pick(*[[{"name": "c", "resources": resources}]] * 5, []),
            "initContainers": self.pick(*[[]] * 5, [{"name": "i", "resources": resources, "restartPolicy": "Always"}]),
            "nodeSelector": self.pick(*[{}] * 4, {"kubernetes.io/hostname": self.chance.choice(NODES)}),
            "affinity": self.pick(*[None] * 4, affinity),
            "tolerations": self.pick([], [{"operator": "Exists"}], [{"key": "k", "operator": self.pick("Equal")}]),
            "priority": self.pick(0, 0, 2_000_000_000),
            "overhead": self.pick({}, {"cpu": self.pick(*QUANTITIES)}),
        }
        born = self.pick("2026-01-01T00:00:00Z", "", "x", "9999-12-31T23:59:59Z")
        more = {"creationTimestamp": born, "deletionTimestamp": self.pick(*[None] * 8, "2026-01-01T00:00:00Z")}
        phase = self.pick(*["Pending", "Running"] * 4, "Succeeded", "Failed")
        return {
            "metadata": self.meta(name, "default", **more),
            "spec": self.pick(spec),
            "status": self.pick({"phase": phase}),
        }
