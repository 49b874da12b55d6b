"""Rules for all tests: how often properties are searched, when garbage is collected, and the order of the tests."""

import gc
import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.support.searching import DEFAULT, SEARCHING, examples

# On a machine with other work, how long an input takes says nothing about the test.
PATIENT = [HealthCheck.too_slow]
settings.register_profile(
    "repeatable", max_examples=examples(DEFAULT), derandomize=True, deadline=None, suppress_health_check=PATIENT
)
settings.register_profile("searching", print_blob=True, deadline=None, suppress_health_check=PATIENT)
settings.load_profile("searching" if SEARCHING else "repeatable")

#: The longest files, and folders with long ones. They start first, so that no worker is left alone with one at the end.
LONG = (
    "tests/e2e/test_drivers_page",
    "tests/e2e/test_sharing_page",
    "tests/cluster/test_kills",
    "tests/e2e/",
    "tests/cluster/",
    "tests/lab/",
    "tests/cli/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--shuffle``, which shows tests that depend on the ones before them."""
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each file, in a random order")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without collecting garbage, and has garbage collected seldom afterwards.

    The modules and their tests live until the end. Looking through them again and again took a third of the time of
    collection, and a part of each test's.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the tests of each file together: files of long folders first, or all in the order of ``--shuffle``."""
    files = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    names = sorted(files, key=_rank)
    seed = config.getoption("shuffle")
    if seed is not None:
        rng = random.Random(seed)
        rng.shuffle(names)
        for name in names:
            rng.shuffle(files[name])
    items[:] = [item for name in names for item in files[name]]


def _rank(file: str) -> int:
    return next((rank for rank, start in enumerate(LONG) if file.startswith(start)), len(LONG))
