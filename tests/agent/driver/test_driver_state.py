"""The home of the driver, and whether its cards may be advertised, as a table."""

import pytest

from tessera.agent.base.node_files import MarkerFile
from tessera.agent.base.settings import ValidationMode
from tessera.agent.driver.hardware import (
    DriverFacts,
    DriverFound,
    DriverHome,
    WaitReason,
    check_validation,
    find_driver,
    is_still_usable,
)

OLD, DRIVER, NEW = (1, 10, 100), (1, 20, 200), (1, 30, 300)
HOST, CONTAINER = DriverFound(DriverHome.HOST), DriverFound(DriverHome.CONTAINER, DRIVER)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (DriverFacts(), HOST),
        (DriverFacts(container=DRIVER, library=True), CONTAINER),
        (DriverFacts(container=DRIVER, library=True, managed=True), CONTAINER),
        (DriverFacts(managed=True), "WaitingForDriver"),
        (DriverFacts(library=True), "WaitingForDriver"),
        (DriverFacts(container=DRIVER), "WaitingForDriver"),
        (DriverFacts(paused=True), "PausedForDriver"),
        (DriverFacts(paused=True, container=DRIVER, library=True), "PausedForDriver"),
    ],
)
def test_where_the_driver_is(facts: DriverFacts, expected: object) -> None:
    found = find_driver(facts)
    assert (found.reason if isinstance(found, WaitReason) else found) == expected


@pytest.mark.parametrize(
    ("found", "facts", "holds"),
    [
        (HOST, DriverFacts(), True),
        (HOST, DriverFacts(managed=True, library=True), True),
        (HOST, DriverFacts(container=DRIVER), False),
        (HOST, DriverFacts(paused=True), False),
        (CONTAINER, DriverFacts(container=DRIVER), True),
        (CONTAINER, DriverFacts(container=NEW), False),
        (CONTAINER, DriverFacts(), False),
        (CONTAINER, DriverFacts(paused=True, container=DRIVER), False),
    ],
)
def test_whether_a_driver_in_use_may_stay_in_use(found: DriverFound, facts: DriverFacts, holds: bool) -> None:
    assert is_still_usable(found, facts) is holds


@pytest.mark.parametrize(
    ("found", "toolkit", "validated", "mode", "expected"),
    [
        (HOST, None, None, ValidationMode.AUTO, None),
        (HOST, None, None, ValidationMode.NEVER, None),
        (HOST, None, None, ValidationMode.ALWAYS, "WaitingForToolkit"),
        (HOST, MarkerFile(OLD), None, ValidationMode.ALWAYS, "WaitingForValidation"),
        (HOST, MarkerFile(OLD), MarkerFile(OLD), ValidationMode.ALWAYS, None),
        (CONTAINER, None, None, ValidationMode.NEVER, None),
        (CONTAINER, None, None, ValidationMode.AUTO, "WaitingForToolkit"),
        (CONTAINER, MarkerFile(NEW), None, ValidationMode.AUTO, "WaitingForValidation"),
        (CONTAINER, MarkerFile(NEW), MarkerFile(NEW), ValidationMode.AUTO, None),
        (CONTAINER, None, MarkerFile(NEW), ValidationMode.AUTO, None),
        # Of the container before: by its age, or as it says itself whatever clocks said then.
        (CONTAINER, MarkerFile(OLD), MarkerFile(OLD), ValidationMode.AUTO, "WaitingForValidation"),
        (CONTAINER, MarkerFile(OLD), None, ValidationMode.AUTO, "WaitingForToolkit"),
        (CONTAINER, None, MarkerFile(NEW, about=OLD), ValidationMode.AUTO, "WaitingForValidation"),
        (CONTAINER, None, MarkerFile(OLD, about=DRIVER), ValidationMode.AUTO, None),
    ],
)
def test_a_wait_names_the_missing_part(
    found: DriverFound,
    toolkit: MarkerFile | None,
    validated: MarkerFile | None,
    mode: ValidationMode,
    expected: str | None,
) -> None:
    waits = check_validation(found, DriverFacts(toolkit=toolkit, validated=validated), mode)
    assert (waits.reason if waits is not None else None) == expected


def test_a_driver_whose_files_do_not_reach_the_agent_is_reported_with_the_remedy() -> None:
    found = find_driver(DriverFacts(container=DRIVER, driver_root="/run/nvidia/driver"))
    assert isinstance(found, WaitReason)
    assert "/run/nvidia/driver has no libnvidia-ml.so.1" in found.message
    assert "mount --make-rshared /run" in found.message
