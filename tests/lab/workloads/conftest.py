"""Shapes of workloads that the stories share."""

from collections.abc import Callable
from typing import Any

import pytest


def _template(*command: str, app: str = "x", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "app", "command": list(command or ("sleep", "infinity"))}
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


@pytest.fixture
def template() -> Callable[..., dict[str, Any]]:
    """A pod template: what its container does, the label ``app``, other fields of its spec."""
    return _template


@pytest.fixture
def workload() -> Callable[..., dict[str, Any]]:
    """A Deployment, ReplicaSet, StatefulSet or DaemonSet of pods labelled with its name."""

    def make(name: str, *command: str, **spec: Any) -> dict[str, Any]:
        made = {"selector": {"matchLabels": {"app": name}}, "template": _template(*command, app=name), **spec}
        return {"metadata": {"name": name}, "spec": made}

    return make
