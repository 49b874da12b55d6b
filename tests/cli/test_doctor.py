"""``tessera doctor``: how its text joins what the asker has no right to examine."""

from tessera.cli.doctor import _lines
from tessera.doctor.findings import unknown

NO_RIGHT = 'Error from server (Forbidden): nodes is forbidden: User "ann" cannot list resource "nodes" in API group ""'
NO_METRICS = 'Error from server (Forbidden): forbidden: User "ann" cannot get path "/metrics"'


def test_missing_rights_are_one_line_and_a_refusal_by_admission_is_not_one_of_them() -> None:
    quota = 'Error from server (Forbidden): pods "trial" is forbidden: exceeded quota: team'
    findings = [
        unknown("nodes", f"nodes cannot be read: {NO_RIGHT}"),
        unknown("feature-gates", f"not examined: {NO_METRICS}"),
        unknown("webhook-reachable", f"not examined: {quota}", "name a namespace"),
    ]
    assert list(_lines(findings, shows_all=False)) == [
        f"unknown  webhook-reachable: not examined: {quota}",
        "         -> name a namespace",
        "unknown  not examined, for lack of rights: nodes, feature-gates",
        "         -> an administrator runs tessera doctor; tessera doctor --all names each right",
        "3 checks: 3 unknown",
    ]
