"""What an installation says: of each object, of all together, and where to look next."""

import pytest

from tessera.cli.install.apply import Done, line, looks, total

AGENT = "daemonset.apps/tessera-agent in tessera-system"
CONTROLLER = "deployment.apps/tessera-controller in tessera-system"
POLICY = "clusterpolicy.nvidia.com/cluster-policy"
ROLLOUT = "See it start: kubectl rollout status -n tessera-system"
COMING = "See drivers come: tessera driver status"
GOING = "See drivers go, from each node when its pods with cards have ended: tessera driver status -v"


def done(**counts: int) -> list[Done]:
    return [Done(f"role/{result}-{n}", result) for result, count in counts.items() for n in range(count)]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"created": 39}, "39 objects created"),
        ({"unchanged": 39}, "39 objects unchanged"),
        ({"unchanged": 39, "created": 1}, "1 object created, 39 unchanged"),
        ({"unchanged": 9, "created": 2, "deleted": 2}, "2 objects created, 2 deleted, 9 unchanged"),
        ({"deleted": 1, "configured": 4}, "4 objects configured, 1 deleted"),
        ({"left": 3, "unchanged": 36}, "3 objects left alone, 36 unchanged"),
    ],
    ids=str,
)
def test_every_object_is_counted_once_as_what_became_of_it(counts: dict[str, int], told: str) -> None:
    assert total(done(**counts), dry=False) == told
    assert total(done(**counts), dry=True) == f"{told} (dry run)", "a trial says the same"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("created", f"{AGENT} created"),
        ("left", f"{AGENT} is somebody else's, and left as it is"),
        ("unchanged", ""),
    ],
)
def test_an_object_has_a_line_unless_nothing_changes(result: str, told: str) -> None:
    assert line(Done(AGENT, result), dry=False) == told
    assert line(Done(AGENT, result), dry=True) == (f"{told} (dry run)" if told else "")


@pytest.mark.parametrize(
    ("all_done", "told"),
    [
        ([Done(CONTROLLER, "created"), Done(AGENT, "created")], [f"{ROLLOUT} daemonset/tessera-agent"]),
        ([Done(CONTROLLER, "configured"), Done(AGENT, "unchanged")], [f"{ROLLOUT} deployment/tessera-controller"]),
        ([Done(AGENT, "unchanged"), Done(POLICY, "created")], [COMING]),
        ([Done(AGENT, "configured"), Done(POLICY, "configured")], [f"{ROLLOUT} daemonset/tessera-agent", COMING]),
        ([Done(AGENT, "unchanged"), Done(POLICY, "deleted")], [GOING]),
        ([Done(POLICY, "configured"), Done("nvidiadriver.nvidia.com/default", "deleted")], [COMING]),
        ([Done("role.rbac.authorization.k8s.io/tessera-agent-config in gpu", "created")], []),
    ],
)
def test_it_is_said_where_to_see_what_was_begun_and_no_more(all_done: list[Done], told: list[str]) -> None:
    assert list(looks(all_done)) == told
