"""``tessera queue`` shows what waits in Kueue: Jobs that have no pods yet, positions, and the reason in plain words."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.kueue.cluster import KueueCluster, template

from tessera.cli.queue import kueue_lines
from tessera.explain.kueue_rows import KueueRows, read_kueue_rows
from tessera.kube.resources.meta import Resource
from tessera.kueue.objects import VERSIONS, VISIBILITY_GROUP, Version

ROLES, BINDINGS = (
    Resource("rbac.authorization.k8s.io", "v1", plural, kind, True, dict[str, Any])
    for plural, kind in (("roles", "Role"), ("rolebindings", "RoleBinding"))
)


async def rows(cluster: KueueCluster, count: int) -> KueueRows:
    """What waits, once it is this many, all with a reason."""

    async def found() -> bool:
        seen = (await read_kueue_rows(cluster.reader, cluster.namespace, cluster.clock.now())).rows
        return len(seen) == count and all(each.case != "kueue-evaluating" for each in seen)

    await cluster.until(found, f"{count} workloads wait")
    return await read_kueue_rows(cluster.reader, cluster.namespace, cluster.clock.now())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_kueue_holds_has_a_row_with_position_and_reason(
    with_kueue: Callable[..., None], version: Version
) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first")

        async def runs() -> bool:
            return "first" in await cluster.running()

        await cluster.until(runs, "the first runs")
        await cluster.job("train", template("3g.20gb"))
        await cluster.clock.sleep(2)
        await cluster.pod("second", "1g.5gb")
        found = await rows(cluster, 2)
        assert [(row.owner, row.queue, row.position, row.of, row.among_all) for row in found.rows] == [
            ("Job/train", "slices", 1, 2, 1),
            ("second", "slices", 2, 2, 2),
        ]
        train = found.rows[0]
        assert train.case == "kueue-quota"
        assert train.verdict == (
            "waits in Kueue for quota; it needs 20Gi more of GPU memory than the queue has free in flavor gpu-memory"
        )
        header, first, second = kueue_lines(found.rows, cluster.clock.now(), cluster.namespace)
        assert header.split() == ["WORKLOAD", "QUEUE", "WAITS", "POSITION", "AMONG", "ALL", "WHY"]
        assert first.split()[0] == "Job/train"
        assert first.split()[3:5] == ["1/2", "1"]
        assert second.split()[0] == "second"
        everywhere = await read_kueue_rows(cluster.reader, None, cluster.clock.now())
        assert [row.owner for row in everywhere.rows] == ["Job/train", "second"]

    with_kueue(story, version=version)


def test_what_may_not_be_read_is_named(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first", "7g.40gb")
        await rows(cluster, 1)
        stranger = cluster.as_user("eve", positions=False)
        found = await read_kueue_rows(stranger, cluster.namespace, cluster.clock.now())
        assert found.rows == ()
        assert any("you may not list workloads.kueue.x-k8s.io" in note for note in found.notes)
        assert any("name one with -n" in note for note in (await read_kueue_rows(stranger, None, 0.0)).notes)

    with_kueue(story)


def test_a_member_of_a_team_sees_the_whole_queue_without_the_flavors_of_the_cluster(
    with_kueue: Callable[..., None],
) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first", "7g.40gb")
        await rows(cluster, 1)
        rules = [
            {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads", "localqueues"], "verbs": ["list"]},
            {"apiGroups": [VISIBILITY_GROUP], "resources": ["localqueues/pendingworkloads"], "verbs": ["get"]},
        ]
        await cluster.client.create(ROLES, {"metadata": {"name": "team"}, "rules": rules}, cluster.namespace)
        binding = {
            "metadata": {"name": "team"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "team"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
        }
        await cluster.client.create(BINDINGS, binding, cluster.namespace)
        member = cluster.as_user("ann")
        found = await read_kueue_rows(member, cluster.namespace, cluster.clock.now())
        assert [row.owner for row in found.rows] == ["first"]
        assert [note for note in found.notes if "may not list" in note] == []

    with_kueue(story)


def test_what_kueue_has_admitted_is_no_row(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first", "1g.5gb")

        async def runs() -> bool:
            return "first" in await cluster.running()

        await cluster.until(runs, "it runs")
        assert await read_kueue_rows(cluster.reader, cluster.namespace, cluster.clock.now()) == KueueRows()
        assert await read_kueue_rows(cluster.reader, None, cluster.clock.now()) == KueueRows()

    with_kueue(story)
