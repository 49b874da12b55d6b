"""A support archive of a whole cluster: what a case needs is in it, and no secret that was planted anywhere."""

import gzip
import json
from pathlib import Path
from typing import Any

from tests.doctor.test_archive import manifest, read
from tests.support.api_clients import in_process_client
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.doctor.bundle import collect
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.resources import CONFIGMAPS, EVENTS, NODES, PODS, SECRETS

SYSTEM = "tessera-system"


class Planter:
    """Makes secrets; each has its place in its text, so that a failing test tells the place."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, place: str) -> str:
        self.made.append(f"s3cr3t-{place}-Zq8Xv")
        return self.made[-1]


def container(plant: Planter, place: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "infinity", f"--token={plant(place + '-command')}"],
        "env": [{"name": "PLAIN", "value": plant(place + "-env")}],
        **fields,
    }


async def plant_everywhere(lab: VirtualLab, plant: Planter) -> None:
    """Puts a secret into every kind of object that the archive is made of, and into some that it is not."""
    client = lab.client
    secret = {"metadata": {"name": "pull"}, "stringData": {"key": plant("secret")}}
    await client.create(SECRETS.as_dicts(), secret, SYSTEM)
    echoed = plant("echoed-env")
    limits = {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}
    main = container(plant, "tenant", **limits)
    main["env"].append({"name": "ECHOED", "value": echoed})
    main["args"] = [plant("tenant-args")]
    tenant = {
        "metadata": {
            "name": "tenant",
            "labels": {"team": plant("tenant-label")},
            "annotations": {"acme.example/note": plant("tenant-annotation")},
        },
        "spec": {"containers": [main]},
    }
    await client.create(PODS.as_dicts(), tenant, "default")
    ours = {
        "metadata": {"name": "tessera-extra", "labels": {"app.kubernetes.io/name": "tessera-controller"}},
        "spec": {"containers": [container(plant, "ours")]},
    }
    await client.create(PODS.as_dicts(), ours, SYSTEM)
    await client.merge_patch(
        NODES,
        "node-1",
        {
            "metadata": {
                "labels": {"acme.example/rack": plant("node-label")},
                "annotations": {
                    "acme.example/bmc": plant("node-annotation"),
                    "nvidia.com/note": f"password: {plant('known-annotation')}",
                },
            }
        },
    )
    policy = {
        "metadata": {"name": "cluster-policy"},
        "spec": {
            "driver": {
                "enabled": False,
                "env": [{"name": "HTTPS_PROXY", "value": f"http://me:{plant('proxy')}@proxy:3128"}],
            }
        },
    }
    await client.create(CLUSTER_POLICIES.as_dicts(), policy)
    profile = f"# api_key = {plant('config-map')}\nversion: v1\n"
    await client.merge_patch(CONFIGMAPS, "sharing-profiles", {"data": {"mine": profile}}, SYSTEM)
    for number, (about, namespace) in enumerate([("Pod", SYSTEM), ("Node", "default")]):
        event = {
            "metadata": {"name": f"planted-{number}"},
            "involvedObject": {"kind": about, "name": "node-1", "namespace": namespace},
            "reason": "Planted",
            "message": f"Bearer {plant(f'event-{number}')} and {echoed}",
            "source": {"component": "tessera-agent"},
        }
        await client.create(EVENTS.as_dicts(), event, namespace)


def test_no_secret_is_in_it_wherever_it_was(in_lab: InLab, tmp_path: Path) -> None:
    plant = Planter()

    async def scenario(lab: VirtualLab) -> None:
        await plant_everywhere(lab, plant)
        await lab.running("tenant")
        await lab.clock.sleep(10)
        archive = await collect(lab.client, lab.clock)
        archive.write(tmp_path / "case.tar.gz")

    in_lab(scenario, nodes="2xA100-40GB", own=True)
    content = gzip.decompress((tmp_path / "case.tar.gz").read_bytes()).decode(errors="replace")
    assert len(plant.made) > 12
    assert [each for each in plant.made if each in content] == []
    files = read(tmp_path / "case.tar.gz")
    # The places are in it, so that the secrets had a way into it.
    events = json.loads(files["events.json"])
    assert sum(each["reason"] == "Planted" for each in events) == 2
    assert b"sleep" in files["logs/tessera-extra.main.log"]
    assert b"acme.example/bmc" in files["nodes.json"]
    assert b"ECHOED" not in files["pods-with-gpus.json"]
    assert b"HTTPS_PROXY" in files["objects/clusterpolicies.json"]
    assert b"mine" in files["objects/configmaps.json"]


def test_it_has_what_a_case_needs(in_lab: InLab, tmp_path: Path) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("slice", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("slice")
        archive = await collect(lab.client, lab.clock)
        archive.write(tmp_path / "case.tar.gz")

    in_lab(scenario, nodes="2xA100-40GB")
    files = read(tmp_path / "case.tar.gz")
    assert {"verdict", "findings"} == set(json.loads(files["doctor.json"]))
    assert json.loads(files["versions.json"])["kubernetes"]["gitVersion"]
    (node,) = json.loads(files["nodes.json"])
    assert node["status"]["nodeInfo"]["kubeletVersion"]
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    (pod,) = json.loads(files["pods-with-gpus.json"])
    assert pod["spec"]["containers"][0]["resources"]["nvidia.com/mig-3g.20gb"] in {"1", 1}
    (instaslice,) = json.loads(files["objects/instaslices.json"])
    assert instaslice["status"]["podAllocationResults"]
    assert "tessera-system/mig-layouts" in json.loads(files["objects/configmaps.json"])
    told = manifest(tmp_path / "case.tar.gz")
    assert {each["path"] for each in told["files"]} == files.keys() - {"manifest.json"}
    assert {"what": "Secrets", "why": "never read"} in told["leftOut"]
    assert any(each["what"] == "decision records" for each in told["leftOut"])


def test_somebody_without_rights_gets_what_is_left_and_a_list_of_the_rest(in_lab: InLab, tmp_path: Path) -> None:
    async def scenario(lab: VirtualLab) -> None:
        jane = in_process_client(lab.cluster.server, lab.clock, "jane", "system:authenticated")
        archive = await collect(jane, lab.clock)
        archive.write(tmp_path / "case.tar.gz")

    in_lab(scenario, nodes="1xA100-40GB")
    told = manifest(tmp_path / "case.tar.gz")
    missing = {each["what"] for each in told["leftOut"]}
    assert {"nodes", "pods of Tessera", "pods that ask for GPUs", "events", "objects of instaslices"} <= missing
    assert "doctor.json" in {each["path"] for each in told["files"]}


def test_it_never_reads_a_secret(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        asker = in_process_client(lab.cluster.server, lab.clock, "support", "system:masters", "system:authenticated")
        await collect(asker, lab.clock)
        asked = {each.resource for each in lab.cluster.server.audit if each.user == "support"}
        assert "pods" in asked
        assert "secrets" not in asked
        own = [each for each in lab.cluster.server.audit if each.user == "support"]
        tokens = [each for each in own if each.resource == "serviceaccounts" and each.verb != "list"]
        assert {(each.verb, each.name) for each in tokens} <= {("create", "tessera-reader")}
        written = {each.resource for each in lab.cluster.server.audit if each.user == "support" and each.verb != "get"}
        assert {each.verb for each in lab.cluster.server.audit if each.user == "support"} <= {"get", "list", "create"}
        assert written >= {"selfsubjectaccessreviews.authorization.k8s.io"}

    in_lab(scenario, nodes="1xA100-40GB")
