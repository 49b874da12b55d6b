"""The live page shows what waits in Kueue, to those who may list Workloads in its namespace."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.kueue.cluster import KueueCluster, template
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.access.reviewer import Person, Reviewer
from tessera.dashboard.documents import Document, KueueDocument, WorkloadDocument
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.kueue_source import KueueReader, KueueSource
from tessera.dashboard.visitors import Rights
from tessera.kube.client import Client
from tessera.kube.resources.meta import Resource
from tessera.kueue.objects import VERSIONS, Version
from tessera.visibility import FULL, Visibility

_RBAC = "rbac.authorization.k8s.io"


def source(cluster: KueueCluster, client: Client | None = None) -> KueueSource:
    """The page's reading of Kueue."""
    client = client or cluster.reader
    return KueueSource(client, watched=lambda: True, changed=lambda: None, clock=cluster.clock, reader=KueueReader())


async def documents(cluster: KueueCluster, count: int) -> dict[str, Document]:
    """The page's documents once so many Workloads wait with a reason."""
    page = source(cluster)

    async def found() -> bool:
        await page.read()
        seen = [each for each in page.documents.values() if isinstance(each, WorkloadDocument)]
        return len(seen) == count and all(each.case != "kueue-evaluating" for each in seen)

    await cluster.until(found, f"{count} workloads wait")
    return page.documents


def keys(feeds: FeedGroup, visibility: Visibility) -> set[str]:
    """The keys of the documents that a reader gets."""
    with feeds.join(visibility, "ann") as feed:
        update = feed.read(None)
        assert update is not None
        return set(msgspec.json.decode(update.texts[0])["set"])


async def let_list_workloads(cluster: KueueCluster, user: str) -> None:
    """Lets a user list the Workloads of the test's namespace."""
    rules = [{"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["list"]}]
    bound: dict[str, Any] = {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "reads-workloads"},
        "subjects": [{"kind": "User", "apiGroup": _RBAC, "name": user}],
    }
    roles: Resource[Any] = Resource(_RBAC, "v1", "roles", "Role", True, dict)
    bindings: Resource[Any] = Resource(_RBAC, "v1", "rolebindings", "RoleBinding", True, dict)
    metadata = {"name": "reads-workloads"}
    await cluster.client.create(roles, {"metadata": metadata, "rules": rules}, cluster.namespace)
    await cluster.client.create(bindings, {"metadata": metadata, **bound}, cluster.namespace)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_kueue_holds_is_a_document_for_those_who_may_list_workloads(
    with_kueue: Callable[..., None], version: Version
) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first")

        async def runs() -> bool:
            return "first" in await cluster.running()

        await cluster.until(runs, "the first runs")
        await cluster.job("train", template("3g.20gb"))
        found = await documents(cluster, 1)
        (key,) = (each for each in found if each.startswith("workload/"))
        shown = found[key]
        assert isinstance(shown, WorkloadDocument)
        assert (shown.namespace, shown.owner, shown.queue) == (cluster.namespace, "Job/train", "slices")
        assert (shown.position, shown.of, shown.among_all) == (1, 1, 1)
        assert shown.verdict.startswith("waits in Kueue for quota; it needs 20Gi more of GPU memory")
        assert found["kueue"] == KueueDocument()

        feeds = FeedGroup()
        feeds.publish(found)
        assert feeds.about.workloads == {cluster.namespace}
        await let_list_workloads(cluster, "ann")
        rights = Rights(Reviewer(cluster.client), cluster.clock, lambda: feeds.about)
        assert keys(feeds, FULL) == {key, "kueue"}
        assert keys(feeds, await rights.visibility(Person("ann"))) == {key, "kueue"}
        assert keys(feeds, await rights.visibility(Person("eve"))) == {"kueue"}

    with_kueue(story, version=version)


def test_an_empty_queue_is_told_from_a_cluster_without_kueue(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        page = source(cluster)
        await page.read()
        assert page.documents == {"kueue": KueueDocument()}

    with_kueue(story)


def test_without_kueue_nothing_is_shown(in_lab: InLab) -> None:
    async def story(lab: VirtualLab) -> None:
        page = KueueSource(
            lab.client, watched=lambda: True, changed=lambda: None, clock=lab.clock, reader=KueueReader()
        )
        await page.read()
        assert page.documents == {}

    in_lab(story)


def test_a_page_that_may_not_list_workloads_says_so(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        page = source(cluster, cluster.as_user("eve"))
        await page.read()
        (found,) = page.documents.values()
        assert isinstance(found, KueueDocument)
        assert found.notes == ("you may not list workloads.kueue.x-k8s.io of all namespaces",)
        assert "workloads.kueue.x-k8s.io is forbidden" in found.detail

    with_kueue(story)
