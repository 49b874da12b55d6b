"""Tests side by side in forks of the process that collected them: ``pytest --forks 3``.

Why not pytest-xdist: each of its workers imports and collects all 18,000 tests again, which takes 6 s of a core, and
the five messages of each test take 1.25 ms of both processes. Forks have what their parent collected, and a test that
passes is one short message.

The numbers of the files wait in a pipe, in the order of the tests. A worker takes the next one when it begins the last
test of the file before, so that fixtures of the session live until its end, and all tests of a file run in one process.
The parent reports what workers send, as if it had run the tests. A worker that dies fails the test that it ran, and
those of its file that were to come.

A warning that the filters do not make an error is not shown.
"""

import os
import signal
import struct
import sys
import traceback
from collections.abc import Sequence
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import pytest
from _pytest.capture import CaptureManager

#: The number of a file in the pipe.
_NUMBER = struct.Struct("H")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--forks``."""
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run N files at a time, in forks")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests in ``--forks`` workers; without the option, or after errors of the collection, pytest goes on."""
    forks: int = session.config.getoption("forks")
    if not forks or not session.items or session.config.option.collectonly or session.testsfailed:
        return None
    _Parent(session).run(forks)
    return True


class _Parent:
    """Starts the workers and reports what they send."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._files = [list(tests) for _, tests in groupby(session.items, _file_of)]
        self._items = {item.nodeid: item for item in session.items}
        self._queue, writer = os.pipe()
        os.write(writer, b"".join(map(_NUMBER.pack, range(len(self._files)))))
        os.close(writer)
        #: The tests that each worker has taken and not ended, and its process.
        self._left: dict[Connection, list[pytest.Item]] = {}
        self._processes: dict[Connection, int] = {}

    def run(self, forks: int) -> None:
        """Returns once all tests have ended.

        Raises:
            pytest.Session.Failed: as many tests failed as ``--maxfail`` allows.
            pytest.Session.Interrupted: a plugin wants no more tests.
        """
        for number in range(min(forks, len(self._files))):
            self._start(number)
        try:
            while self._processes:
                for connection in wait(list(self._processes)):
                    assert isinstance(connection, Connection)
                    self._hear(connection)
        finally:
            never_begun = self._take_rest()
            for process in self._processes.values():  # this one was interrupted, and so were they
                os.waitpid(process, 0)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        if never_begun:
            self._session.shouldfail = f"{len(never_begun)} tests have not run: all workers have died"
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _start(self, number: int) -> None:
        folders = self._session.config._tmp_path_factory  # type: ignore[attr-defined]
        folder = folders.getbasetemp() / f"worker-{number}"
        folder.mkdir()
        reader, writer = Pipe(duplex=False)
        process = os.fork()
        if process == 0:
            folders._basetemp = folder
            _Worker(self._session, self._files, self._queue, writer).live()
        writer.close()
        self._left[reader], self._processes[reader] = [], process

    def _hear(self, connection: Connection) -> None:
        """Reports what a worker sends: the number of a file that it begins, the id of a test that passed, a report."""
        try:
            said = connection.recv()
        except EOFError:
            self._bury(connection)
            return
        hook = self._session.config.hook
        match said:
            case int():
                self._left[connection] += self._files[said]
            case str(), float():
                self._left[connection].remove(self._items[said[0]])
                report = pytest.TestReport(
                    said[0], self._items[said[0]].location, {}, "passed", None, "call", duration=said[1]
                )
                hook.pytest_runtest_logreport(report=report)
            case dict():
                report = hook.pytest_report_from_serializable(config=self._session.config, data=said)
                if report.when == "teardown":
                    self._left[connection].remove(self._items[report.nodeid])
                hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail or self._session.shouldstop:
            self._take_rest()

    def _bury(self, connection: Connection) -> None:
        """Fails what a worker that has ended has left."""
        connection.close()
        _, status = os.waitpid(self._processes.pop(connection), 0)
        for item in self._left.pop(connection):
            text = f"its worker ended with status {os.waitstatus_to_exitcode(status)}; see standard error"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            item.ihook.pytest_runtest_logreport(report=report)

    def _take_rest(self) -> list[pytest.Item]:
        """Takes the files that nobody runs yet, so that each worker ends with what it has."""
        return [item for number in iter(lambda: _take(self._queue), None) for item in self._files[number]]


class _Worker:
    """A fork that runs files until none is left; also a plugin of its pytest, which hears of the reports."""

    def __init__(
        self, session: pytest.Session, files: Sequence[list[pytest.Item]], queue: int, connection: Connection
    ) -> None:
        self._session, self._files, self._queue, self._connection = session, files, queue, connection
        self._quiet: list[pytest.TestReport] = []

    def live(self) -> NoReturn:
        """Runs tests, and ends the process."""
        status = 1
        try:
            self._separate()
            self._run()
            status = 0
        except KeyboardInterrupt:
            self._session._setupstate.teardown_exact(None)
            status = 128 + signal.SIGINT
        except BaseException:  # noqa: BLE001 - the parent fails the tests that are left
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _separate(self) -> None:
        """Takes what tests print for itself, and shows nothing: the parent does."""
        plugins = self._session.config.pluginmanager
        capture: CaptureManager | None = plugins.get_plugin("capturemanager")
        assert capture is not None
        capture.stop_global_capturing()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        capture.start_global_capturing()
        capture.suspend_global_capture()
        plugins.register(self)

    def _run(self) -> None:
        tests = self._next_file()
        while tests:
            following: list[pytest.Item] = []
            for index, item in enumerate(tests):
                is_last = index + 1 == len(tests)
                if is_last:
                    following = self._next_file()
                coming = following[:1] if is_last else tests[index + 1 :][:1]
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=coming[0] if coming else None)
            tests = following

    def _next_file(self) -> list[pytest.Item]:
        number = _take(self._queue)
        if number is None:
            return []
        self._connection.send(number)
        return self._files[number]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sends the reports of a test, those of one that passes as its id and seconds."""
        self._quiet.append(report)
        if report.when != "teardown":
            return
        reports, self._quiet = self._quiet, []
        if all(each.passed for each in reports):
            self._connection.send((report.nodeid, sum(each.duration for each in reports)))
            return
        hook, config = self._session.config.hook, self._session.config
        for each in reports:
            self._connection.send(hook.pytest_report_to_serializable(config=config, report=each))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _take(queue: int) -> int | None:
    """The number of the next file; None after the last. A pipe gives each number to one reader, and always whole."""
    data = os.read(queue, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None
