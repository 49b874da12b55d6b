"""Each file of examples/ and each whole object in the pages is taken by a cluster with Tessera and Kueue.

Other tests run many of them; this one finds a file that nobody applies, a version that nothing serves, and a field that
does not exist.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.errors import AlreadyExists, ApiError
from tessera.kube.resources import NAMESPACES
from tessera.kube.resources.meta import resource_for
from tessera_lab.kueue.stand_in import StandIn

ROOT = Path(__file__).parents[2]
#: Files that are for programs and not for an API server; tests/deploy and tests/charts render and read them.
READ_BY_PROGRAMS = {"kustomize.config.k8s.io/v1beta1", "config.kueue.x-k8s.io/v1beta2", None}
#: Objects of tools that this cluster does not have; test_services.py asks their queries.
READ_BY_PROGRAMS |= {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
WITHOUT_NAMESPACE = {"Namespace", "Queue", "ClusterPolicy", "DeviceClass", "APIService"} | {
    "ResourceFlavor",
    "ClusterQueue",
    "AdmissionCheck",
    "Topology",
}
#: Files that need other nodes than this cluster has, and the refusal that says so; docs/sharing.md shows them.
REFUSED = {
    "examples/sharing/kinds.yaml": "nvidia.com/mig-2g.10gb.fixed is a profile of no card in this cluster",
    "examples/sharing/requirements.yaml": "fulfils memory 12Gi, product T4 or L4: none has the product",
    "examples/sharing/too-demanding.yaml": "no GPU of the cluster fulfils",
}
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.yaml"))


def objects(path: str) -> list[dict[str, Any]]:
    found = yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8"))
    return [each for each in found if each.get("apiVersion") not in READ_BY_PROGRAMS]


def objects_of_pages() -> list[tuple[str, dict[str, Any]]]:
    """The blocks of the pages that are whole objects, with the page's name."""
    found = []
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for each in yaml.safe_load_all(block):
                whole = isinstance(each, dict) and {"apiVersion", "kind", "metadata"} <= each.keys()
                if whole and each["apiVersion"] not in READ_BY_PROGRAMS:
                    found.append((page.name, each))
    return found


def store(in_lab: InLab, items: list[tuple[str, dict[str, Any]]]) -> None:
    """Creates objects in a cluster in which they and their namespaces are new; unknown fields are refused."""

    async def scenario(lab: VirtualLab) -> None:
        refused: set[str] = set()
        stand_in = StandIn(lab.client, lab.clock, resources={})
        await stand_in.install(lab.cluster.reviewers)
        for place, each in items:
            if each["kind"] not in WITHOUT_NAMESPACE:
                each["metadata"].setdefault("namespace", "default")
            namespace = each["metadata"].get("namespace")
            if namespace is not None:
                with suppress(AlreadyExists):
                    await lab.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": namespace}})
            try:
                path = resource_for(each).path(namespace)
                await lab.client.request("POST", path, query=[("fieldValidation", "Strict")], body=each)
            except ApiError as error:
                if REFUSED.get(place, "no refusal") not in error.message:
                    raise AssertionError(f"{place}: {each['kind']}: {error}") from error
                refused.add(place)
        assert refused == {place for place, _ in items} & REFUSED.keys()

    in_lab(scenario, nodes="1xA100-40GB")


@pytest.mark.parametrize("path", [each for each in FILES if objects(each)])
def test_a_file_is_taken(in_lab: InLab, path: str) -> None:
    store(in_lab, [(path, each) for each in objects(path)])


def test_whole_objects_of_the_pages_are_taken(in_lab: InLab) -> None:
    items = objects_of_pages()
    assert items
    store(in_lab, items)
