"""Simulated machines of a few cards."""

from pathlib import Path

import pytest

from tessera.nvml.simulated import SimulatedMachine


@pytest.fixture
def machine() -> SimulatedMachine:
    """Two A100, MIG mode on."""
    return SimulatedMachine("2xA100-40GB", seed="node-1", mig=True)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "cards.json"
