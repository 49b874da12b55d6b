"""The metric of the new nodes that are asked for."""

from prometheus_client import CollectorRegistry, generate_latest

from tessera.scale_up.satellite import NewNodeMetrics


def test_a_group_that_needs_no_nodes_any_more_is_not_shown() -> None:
    registry = CollectorRegistry()
    metrics = NewNodeMetrics(registry)
    metrics.show({"pairs": 1, "removed": 2})
    metrics.show({"pairs": 3})
    text = generate_latest(registry).decode()
    assert 'tessera_requested_nodes{group="pairs"} 3.0' in text
    assert "removed" not in text
