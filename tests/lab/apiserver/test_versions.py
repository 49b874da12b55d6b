"""One choice of a version: what the server and its kubelets say, and what is served."""

import pytest
from tests.support.api_user import ApiUser, ManualClock

from tessera_lab.apiserver.kinds.versions import RELEASES
from tessera_lab.apiserver.main.server import ApiServer

CLAIMS = {"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"}
SERVED = {"1.32": set[str](), "1.34": CLAIMS, "1.35": CLAIMS, "1.36": CLAIMS, "1.37": CLAIMS | {"devicetaintrules"}}


@pytest.mark.parametrize("version", RELEASES)
async def test_the_version_decides_what_is_served(clock: ManualClock, version: str) -> None:
    api = ApiUser(ApiServer(clock, kubernetes=version))
    found = await api("GET", "/version")
    assert (f"{found['major']}.{found['minor']}", found["gitVersion"]) == (version, f"v{RELEASES[version]}+tessera-lab")
    assert (await api("GET", "/openapi/v2"))["info"]["version"] == found["gitVersion"]
    served = await api("GET", "/apis/resource.k8s.io/v1")
    assert {each["name"] for each in served.get("resources", ()) if "/" not in each["name"]} == SERVED[version]
