"""Where a driver is and whether its cards may be advertised, as a table."""

import pytest

from tessera.agent.base.marker_files import Mark
from tessera.agent.driver.driver_state import (
    Facts,
    Found,
    Home,
    Validation,
    Waits,
    find_driver,
    still_holds,
    validation,
)

OLD, DRIVER, NEW = (1, 10, 100), (1, 20, 200), (1, 30, 300)
HOST, CONTAINER = Found(Home.HOST), Found(Home.CONTAINER, DRIVER)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(), HOST),
        (Facts(container=DRIVER, library=True), CONTAINER),
        (Facts(container=DRIVER, library=True, managed=True), CONTAINER),
        (Facts(managed=True), "WaitingForDriver"),
        (Facts(library=True), "WaitingForDriver"),
        (Facts(container=DRIVER), "WaitingForDriver"),
        (Facts(paused=True), "PausedForDriver"),
        (Facts(paused=True, container=DRIVER, library=True), "PausedForDriver"),
    ],
)
def test_where_the_driver_is(facts: Facts, expected: object) -> None:
    found = find_driver(facts)
    assert (found.reason if isinstance(found, Waits) else found) == expected


@pytest.mark.parametrize(
    ("found", "facts", "holds"),
    [
        (HOST, Facts(), True),
        (HOST, Facts(managed=True, library=True), True),
        (HOST, Facts(container=DRIVER), False),
        (HOST, Facts(paused=True), False),
        (CONTAINER, Facts(container=DRIVER), True),
        (CONTAINER, Facts(container=NEW), False),
        (CONTAINER, Facts(), False),
        (CONTAINER, Facts(paused=True, container=DRIVER), False),
    ],
)
def test_whether_a_driver_in_use_may_stay_in_use(found: Found, facts: Facts, holds: bool) -> None:
    assert still_holds(found, facts) is holds


@pytest.mark.parametrize(
    ("found", "toolkit", "validated", "mode", "expected"),
    [
        (HOST, None, None, Validation.AUTO, None),
        (HOST, None, None, Validation.NEVER, None),
        (HOST, None, None, Validation.ALWAYS, "WaitingForToolkit"),
        (HOST, Mark(OLD), None, Validation.ALWAYS, "WaitingForValidation"),
        (HOST, Mark(OLD), Mark(OLD), Validation.ALWAYS, None),
        (CONTAINER, None, None, Validation.NEVER, None),
        (CONTAINER, None, None, Validation.AUTO, "WaitingForToolkit"),
        (CONTAINER, Mark(NEW), None, Validation.AUTO, "WaitingForValidation"),
        (CONTAINER, Mark(NEW), Mark(NEW), Validation.AUTO, None),
        (CONTAINER, None, Mark(NEW), Validation.AUTO, None),
        # Of the container before: by its age, or as it says itself whatever clocks said then.
        (CONTAINER, Mark(OLD), Mark(OLD), Validation.AUTO, "WaitingForValidation"),
        (CONTAINER, Mark(OLD), None, Validation.AUTO, "WaitingForToolkit"),
        (CONTAINER, None, Mark(NEW, about=OLD), Validation.AUTO, "WaitingForValidation"),
        (CONTAINER, None, Mark(OLD, about=DRIVER), Validation.AUTO, None),
    ],
)
def test_what_is_missing_before_cards_are_advertised(
    found: Found, toolkit: Mark | None, validated: Mark | None, mode: Validation, expected: str | None
) -> None:
    waits = validation(found, Facts(toolkit=toolkit, validated=validated), mode)
    assert (waits.reason if waits is not None else None) == expected


def test_a_driver_whose_files_do_not_reach_the_agent_is_told_with_what_the_host_lacks() -> None:
    found = find_driver(Facts(container=DRIVER, driver_root="/run/nvidia/driver"))
    assert isinstance(found, Waits)
    assert "/run/nvidia/driver has no libnvidia-ml.so.1" in found.message
    assert "mount --make-rshared /run" in found.message
