"""Rules for all tests: how often properties are searched, when garbage is collected, their loops and their order."""

import asyncio
import gc
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.support.scheduling import GroupScheduling
from tests.support.searching import DEFAULT, SEARCHING, examples

from tessera_lab.simulation.virtual_time import VirtualTimeLoop, collect_garbage_seldom

# On a machine with other work, how long an input takes says nothing about the test.
PATIENT = [HealthCheck.too_slow]
settings.register_profile(
    "repeatable", max_examples=examples(DEFAULT), derandomize=True, deadline=None, suppress_health_check=PATIENT
)
settings.register_profile("searching", print_blob=True, deadline=None, suppress_health_check=PATIENT)
settings.load_profile("searching" if SEARCHING else "repeatable")

# An HTTP client reads the system's certificates at its import, in each of some hundred processes; no test needs them.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)

# A child that is forked beside a server of gRPC would run gRPC's handlers before its program starts, and abort now and
# then.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Images and shells set this; then each of those processes would compile its modules anew, and each run all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# kubectl, Helm and Prometheus, which end soon or have little in memory, would spend a sixth of their time on garbage.
os.environ.setdefault("GOGC", "400")

# A shell's background jobs ignore SIGINT, and so would all programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Tests that mostly wait for processes of their own, and tests that compute; long files first. They start by turns, so
#: that a core computes while another worker waits, and no worker has a long file at the end.
WAITING = ("tests/e2e/test_drivers_page", "tests/e2e/test_sharing_page", "tests/e2e/")
COMPUTING = ("tests/cluster/test_streamed_pods", "tests/cluster/", "tests/lab/", "tests/cli/", "tests/")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--shuffle``, which shows tests that depend on the ones before them."""
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each file, in a random order")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests whose fixtures ask for ``virtual_time`` run on it, the other ones on the machine's time."""
    if "virtual_time" in item.fixturenames:  # type: ignore[attr-defined]
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture
def virtual_time() -> Iterator[None]:
    """For fixtures that a test waits with: its event loop runs on virtual time."""
    with collect_garbage_seldom():
        yield


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
    waiting = sorted((name for name in files if name.startswith(WAITING)), key=partial(_rank, WAITING))
    computing = sorted(files.keys() - set(waiting), key=partial(_rank, COMPUTING))
    names = [name for pair in zip_longest(waiting, computing) for name in pair if name]
    seed = config.getoption("shuffle")
    if seed is not None:
        rng = random.Random(seed)
        rng.shuffle(names)
        for name in names:
            rng.shuffle(files[name])
    items[:] = [item for name in names for item in files[name]]


def _rank(starts: Sequence[str], file: str) -> tuple[int, str]:
    return next(rank for rank, start in enumerate(starts) if file.startswith(start)), file


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Groups files where they stay whole."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadfile" else None
