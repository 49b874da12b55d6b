"""What is said about kernels that are to come. Pure."""

from collections.abc import Iterator

import msgspec

from tessera.cli.driver.pool_images import aligned
from tessera.driver.coverage.report import CoverageReport, KernelCoverage


def table(report: CoverageReport) -> Iterator[str]:
    """The answer for people."""
    if report.rows:
        rows = [("KERNEL", "NODES", "COVERED", "IMAGE, OR WHY NOT")]
        rows += [_cells(row) for row in sorted(report.rows, key=lambda row: row.pool)]
        yield from aligned(rows)
        yield ""
    for group, is_open in sorted(report.gates.items()):
        yield f"{group}: gate {'open' if is_open else 'closed'}"
    for group in report.unknown:
        yield f"{group}: not known which kernel comes"
    for each in report.idle:
        yield f"{each.kernel}: no node runs {each.os_id}{each.os_version}, and no policy is for it"
    yield from report.problems
    yield report.summary if report.rows else "No kernel is known to come."


def unknown(report: CoverageReport, *, cluster: bool) -> str:
    """What is to be said where it is not known of all nodes which kernel comes.

    Args:
        report: one that is not :attr:`~tessera.driver.coverage.report.CoverageReport.cached_header`.
        cluster: it is of a cluster, whose list can be added to.
    """
    if not report.unknown and report.rows:
        return "warning: lines of the lists cannot be read; what they mean is not looked for"
    whose = f" for {', '.join(report.unknown)}" if report.unknown else ""
    text = f"warning: nobody has said which kernel comes{whose}, so nothing was looked for there"
    return text + ("; list them in ConfigMap tessera-system/driver-next-kernels, or by --announce" if cluster else "")


def _cells(row: KernelCoverage) -> tuple[str, str, str, str]:
    return row.pool.kernel, row.group, "yes" if row.covered else "no", row.reason


def as_json(report: CoverageReport) -> str:
    """The answer for programs."""
    document = {
        "summary": report.summary,
        "covered": report.covered,
        "total": len(report.rows),
        "open": report.open,
        "gates": report.gates,
        "kernels": [
            {
                "kernel": row.pool.kernel,
                "pool": row.group,
                "policy": row.policy,
                "covered": row.covered,
                "image": row.image,
                "reason": row.reason,
            }
            for row in report.rows
        ],
        "unknown": report.unknown,
        "idle": [f"{each.os_id}{each.os_version} {each.kernel}" for each in report.idle],
        "problems": report.problems,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
