"""A tracker and the objects that a test shows it."""

from typing import Any

from tests.provisioning.conftest import T0, make_node

from tessera.kube.resources import Pod
from tessera.provisioning.timestamps import read_node, read_pod
from tessera.provisioning.tracker import Tracker


class TrackedCluster:
    """A tracker that sees nodes and pods; times are seconds after the node's registration."""

    def __init__(self) -> None:
        self.tracker = Tracker()

    def node(self, now: float, *, live: bool = True, **node: Any) -> None:
        """Shows the tracker a node with these fields."""
        self.tracker.observe_node(read_node(make_node(**node)), T0 + now, live=live)
        self.validate()

    def pod(self, pod: Pod, now: float = 0) -> None:
        """Shows the tracker a pod."""
        found = read_pod(pod)
        assert found is not None
        self.tracker.observe_pod(found, T0 + now)
        self.validate()

    def validate(self) -> None:
        """Checks that the usable nodes are those whose records say so."""
        records = self.tracker.records.items()
        assert self.tracker.usable == {name: record.uid for name, record in records if record.usable}
