"""Each example runs in the lab, on a node with the profile or layout that it names, on what it asked for."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.kube.resources import (
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
    STATEFULSETS,
    STORAGE_CLASSES,
    Resource,
)
from tessera.nvml.interface import GpuUuid
from tessera_lab.daemon.serve import STORAGE

FOLDER = Path(__file__).parents[2] / "examples" / "workloads"
KINDS: dict[str, Resource[Any]] = {
    "Pod": PODS,
    "Service": SERVICES,
    "Deployment": DEPLOYMENTS,
    "StatefulSet": STATEFULSETS,
    "Job": JOBS,
    "PersistentVolumeClaim": PERSISTENT_VOLUME_CLAIMS,
    "Namespace": NAMESPACES,
}


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Of an example: the labels of its node, and the devices of each container of its pods.

    Attributes:
        profile, layout: labels of the node; empty for none.
        resource: a resource by which the node shows that it follows them.
        pods: number of pods that run at once.
        devices: profiles of the MIG devices of each container, or "card" for a card of the node.
    """

    profile: str = ""
    layout: str = ""
    resource: str
    pods: int = 1
    devices: dict[str, list[str]]


EXPECTED = {
    "whole-card": Expected(resource="nvidia.com/gpu", devices={"main": ["card"]}),
    "time-slice": Expected(profile="slice-4", resource="nvidia.com/gpu.shared", devices={"main": ["card"]}),
    "mps": Expected(profile="mps-4", resource="nvidia.com/gpu.mps", devices={"main": ["card"]}),
    "fixed-mig": Expected(layout="all-2g.10gb", resource="nvidia.com/mig-2g.10gb", devices={"main": ["2g.10gb"]}),
    "on-demand": Expected(layout="dynamic", resource="nvidia.com/mig-3g.20gb", devices={"main": ["3g.20gb"]}),
    "several-slices": Expected(
        layout="dynamic",
        resource="nvidia.com/mig-1g.5gb",
        devices={"pipeline": ["1g.5gb", "2g.10gb"], "scorer": ["1g.5gb"]},
    ),
    # 10Gi: the smallest slice with as much, and not the fourth part of a card that has exactly that.
    "requirements": Expected(layout="dynamic", resource="nvidia.com/mig-2g.10gb", devices={"main": ["1g.10gb"]}),
    "job": Expected(layout="dynamic", resource="nvidia.com/mig-2g.10gb", pods=2, devices={"train": ["2g.10gb"]}),
    "deployment": Expected(profile="slice-4", resource="nvidia.com/gpu.shared", pods=2, devices={"worker": ["card"]}),
    "statefulset": Expected(layout="dynamic", resource="nvidia.com/mig-1g.5gb", pods=2, devices={"member": ["1g.5gb"]}),
    "inference-server": Expected(layout="dynamic", resource="nvidia.com/mig-3g.20gb", devices={"vllm": ["3g.20gb"]}),
    "notebook": Expected(profile="slice-4", resource="nvidia.com/gpu.shared", devices={"jupyter": ["card"]}),
}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def test_each_file_is_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == EXPECTED.keys()


def test_the_page_names_the_label_of_each() -> None:
    page = (FOLDER.parents[1] / "docs" / "examples.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\[([a-z-]+)\.yaml\]\(\.\./examples/workloads/\1\.yaml\) \| (.*) \|$", page, re.MULTILINE)
    keys = {"profile": "nvidia.com/device-plugin.config", "layout": "nvidia.com/mig.config"}
    labels = {
        name: {f"`{key}={value}`" for kind, key in keys.items() if (value := getattr(each, kind))}
        for name, each in EXPECTED.items()
    }
    assert {name: {text} for name, text in rows} == {
        name: wanted or {"no label"} for name, wanted in labels.items()
    } | {"requirements": {"any of these"}}


def test_the_inference_server_loads_from_its_node_is_ready_at_once_and_ends_its_requests() -> None:
    (spec,) = (
        each["spec"]["template"]["spec"] for each in documents("inference-server") if each["kind"] == "Deployment"
    )
    (server,) = spec["containers"]
    assert [set(each) - {"name"} for each in spec["volumes"]] == [{"image"}]
    paths = [each["mountPath"] for each in server["volumeMounts"]]
    options = dict(each.removeprefix("--").split("=") for each in server["args"])
    assert any(options["model"].startswith(f"{path}/") for path in paths)
    assert all(server[probe]["periodSeconds"] == 1 for probe in ("startupProbe", "readinessProbe"))
    wait = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert wait > 0
    assert wait + int(options["shutdown-timeout"]) < spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", EXPECTED)
def test_it_runs_on_what_it_asked_for(in_lab: InLab, name: str) -> None:
    expected = EXPECTED[name]

    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(STORAGE_CLASSES.as_dicts(), STORAGE)
        await lab.label("node-1", profile=expected.profile or None, layout=expected.layout or None)
        await lab.until(lambda: expected.resource in lab.gpus(), f"the node offers {expected.resource}")
        await lab.until(lambda: expected.resource in offers_of(lab), "admission can know it")
        await lab.clock.sleep(1)  # simulated: the webhook's informer has seen it too
        for each in documents(name):
            await lab.client.create(KINDS[each["kind"]].as_dicts(), each, "default")
        await lab.until(lambda: len(running(lab)) == expected.pods, f"{expected.pods} pods of {name} run")
        cards = lab.machine().uuids()
        given: list[str] = []
        for pod in running(lab):
            for container, wanted in expected.devices.items():
                devices = lab.devices(pod, container)
                assert sorted(kind_of(lab, each, cards) for each in devices) == wanted
                given += devices
        if "card" not in str(expected.devices):
            assert len(set(given)) == len(given), "each container has slices of its own"
        if name == "job":
            await lab.until(lambda: len(finished(lab)) == 4, "all four runs have ended")
            await lab.empty()

    in_lab(scenario, nodes="4xA100-40GB", mig_config="")


def offers_of(lab: VirtualLab) -> str:
    """The annotation with the node's offers."""
    return str(lab.existing_node("node-1").metadata.annotations.get(OFFERS_ANNOTATION, ""))


def running(lab: VirtualLab) -> list[str]:
    return [pod.metadata.name for pod in lab.pods.cache.values() if lab.ready(pod.metadata.name)]


def finished(lab: VirtualLab) -> list[str]:
    return [pod.metadata.name for pod in lab.pods.cache.values() if pod.status.phase == "Succeeded"]


def kind_of(lab: VirtualLab, device: str, cards: Sequence[GpuUuid]) -> str:
    """The profile of a MIG device, or "card"."""
    if device in cards:
        return "card"
    machine = lab.machine()
    (profile,) = (
        each.profile
        for gpu in cards
        for each in machine.instances(gpu)
        if any(one.mig_uuid == device for one in each.compute_instances)
    )
    return str(profile)
