"""The owner of each field after the installer took over kubectl's fields."""

from typing import Any

from tessera.cli.install.ownership import take_over_fields

ME, VERSION = "tessera-install", "apps/v1"


def entry(manager: str, operation: str, *fields: str, version: str = VERSION, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"manager": manager, "operation": operation, "apiVersion": version, **more}
    return found | {"fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}}}


def test_what_kubectl_did_not_apply_stays_as_it_is() -> None:
    owners = [entry(ME, "Apply", "a"), entry("kubectl-edit", "Update", "b"), entry("controller", "Update", "c")]
    assert take_over_fields(owners, ME, VERSION) is None


def test_what_kubectl_applied_in_either_way_is_added_to_ours_and_others_stay() -> None:
    other = entry("controller", "Update", "d", subresource="status")
    owners = [
        entry("kubectl-client-side-apply", "Update", "b", "a"),
        other,
        entry(ME, "Apply", "a"),
        entry("kubectl", "Apply", "c"),
    ]
    assert take_over_fields(owners, ME, VERSION) == [other, entry(ME, "Apply", "a", "b", "c")]


def test_without_an_entry_of_ours_there_is_one_afterwards() -> None:
    assert take_over_fields([entry("kubectl", "Apply", "a")], ME, VERSION) == [entry(ME, "Apply", "a")]


def test_fields_named_in_another_version_stay_their_owner_s() -> None:
    assert take_over_fields([entry("kubectl", "Apply", "a", version="apps/v1beta1")], ME, VERSION) is None
