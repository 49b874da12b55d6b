"""The gate as a metric: 1 where the next kernel has a driver image, 0 where it has none."""

from prometheus_client import CollectorRegistry, Gauge

from tessera.driver.coverage.report import Report


class CoverageMetrics:
    """What ``/metrics`` shows of kernels that are to come.

    Args:
        registry: of the process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._covered = Gauge(
            "tessera_driver_next_kernel_covered",
            "1 if nodes of a pool get a driver image for a kernel that is to come.",
            ["pool", "kernel"],
            registry=registry,
        )
        self._shown: set[tuple[str, str]] = set()

    def show(self, report: Report) -> None:
        """Shows this report and nothing of the one before. Of two policies for one kernel, both must be covered."""
        values: dict[tuple[str, str], bool] = {}
        for row in report.rows:
            labels = (row.group, row.pool.kernel)
            values[labels] = values.get(labels, True) and row.covered
        for labels in self._shown - values.keys():
            self._covered.remove(*labels)
        for labels, covered in values.items():
            self._covered.labels(*labels).set(int(covered))
        self._shown = set(values)
