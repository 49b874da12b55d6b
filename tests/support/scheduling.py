"""Which worker of pytest-xdist runs a test."""

import re
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # it has none

#: Files whose tests share what a process starts once, booted clusters or a browser, and the group that each is in.
GROUPS = (
    (re.compile("tests/cluster/test_[a-o]"), "clusters, a to o"),
    (re.compile("tests/cluster/"), "clusters, p to z"),
    (re.compile(r"tests/(dashboard/browser/|website/test_in_a_browser)"), "pages in a browser"),
)


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives all tests of a file to one worker, and all files of a group; a test that ends its worker runs once."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((name for pattern, name in GROUPS if pattern.match(file)), file)

    def remove_node(self, node: Any) -> str | None:
        """Takes the tests of a worker back; returns the one that it ran, which would end the next worker too."""
        left = {
            scope: pending
            for scope, tests in self.assigned_work.pop(node).items()
            if (pending := {test: done for test, done in tests.items() if not done})
        }
        if not left:
            return None
        scope = next(iter(left))
        ran = next(iter(left[scope]))
        del left[scope][ran]
        self.workqueue.update({scope: tests for scope, tests in left.items() if tests})
        for each in self.assigned_work:
            self._reschedule(each)
        return str(ran)

    def _reschedule(self, node: Any) -> None:
        """Gives a worker two tests at least, since it begins one when it knows the next, or lets it end."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)
