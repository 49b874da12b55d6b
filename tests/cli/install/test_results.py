"""The output of an installation: a line for each object, a summary, and the next command to use."""

import pytest

from tessera.cli.install.apply import AppliedObject, next_steps, result_line, summary_line

AGENT = "daemonset.apps/tessera-agent in tessera-system"
CONTROLLER = "deployment.apps/tessera-controller in tessera-system"
POLICY = "clusterpolicy.nvidia.com/cluster-policy"
ROLLOUT = "Watch it start: kubectl rollout status -n tessera-system"
COMING = "Watch the drivers: tessera driver status"


def done(**counts: int) -> list[AppliedObject]:
    return [AppliedObject(f"role/{result}-{n}", result) for result, count in counts.items() for n in range(count)]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"created": 39}, "39 objects created"),
        ({"unchanged": 39}, "39 objects unchanged"),
        ({"unchanged": 39, "created": 1}, "1 object created, 39 unchanged"),
        ({"unchanged": 9, "created": 2, "deleted": 2}, "2 objects created, 2 deleted, 9 unchanged"),
        ({"deleted": 1, "configured": 4}, "4 objects configured, 1 deleted"),
        ({"replaced": 1, "unchanged": 39}, "1 object made by hand and replaced, 39 unchanged"),
        ({"withdrawn": 1, "unchanged": 39}, "1 object of others without Tessera's fields, 39 unchanged"),
        ({"left": 3, "unchanged": 36}, "3 objects skipped (other owner), 36 unchanged"),
    ],
    ids=str,
)
def test_every_object_is_counted_once_as_what_became_of_it(counts: dict[str, int], told: str) -> None:
    assert summary_line(done(**counts), dry=False) == told
    assert summary_line(done(**counts), dry=True) == f"{told} (dry run)", "a trial says the same"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("created", f"{AGENT} created"),
        ("left", f"{AGENT} skipped, it has another owner"),
        ("replaced", f"{AGENT} configured: a ConfigMap made by hand was replaced"),
        ("withdrawn", f"{AGENT} configured: Tessera's fields were removed, it stays since others wrote to it"),
        ("immutable", f"{AGENT} stays, it is immutable; if you do not need it, delete it with kubectl"),
        ("unchanged", ""),
    ],
)
def test_an_object_has_a_line_unless_nothing_changes(result: str, told: str) -> None:
    assert result_line(AppliedObject(AGENT, result), dry=False) == told
    assert result_line(AppliedObject(AGENT, result), dry=True) == (f"{told} (dry run)" if told else "")


@pytest.mark.parametrize(
    ("all_done", "told"),
    [
        (
            [AppliedObject(CONTROLLER, "created"), AppliedObject(AGENT, "created")],
            [f"{ROLLOUT} daemonset/tessera-agent"],
        ),
        (
            [AppliedObject(CONTROLLER, "configured"), AppliedObject(AGENT, "unchanged")],
            [f"{ROLLOUT} deployment/tessera-controller"],
        ),
        ([AppliedObject(AGENT, "unchanged"), AppliedObject(POLICY, "created")], [COMING]),
        (
            [AppliedObject(AGENT, "configured"), AppliedObject(POLICY, "configured")],
            [f"{ROLLOUT} daemonset/tessera-agent", COMING],
        ),
        ([AppliedObject(POLICY, "configured"), AppliedObject("nvidiadriver.nvidia.com/default", "deleted")], [COMING]),
        ([AppliedObject("role.rbac.authorization.k8s.io/tessera-agent-config in gpu", "created")], []),
    ],
)
def test_it_is_said_where_to_see_what_was_begun_and_no_more(all_done: list[AppliedObject], told: list[str]) -> None:
    assert list(next_steps(all_done)) == told


def test_a_deleted_policy_says_when_drivers_go_and_where_to_see_it() -> None:
    (step,) = next_steps([AppliedObject(AGENT, "unchanged"), AppliedObject(POLICY, "deleted")])
    for fact in (
        "Tessera removes the driver from each node",
        "its pods with cards have ended",
        "tessera driver status -v",
    ):
        assert fact in step
