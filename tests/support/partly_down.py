"""An API server that does not answer for one kind."""

import json

from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport


class PartlyDownTransport(InProcessTransport):
    """Answers 500 to requests for the objects of one kind, and to the others as ever.

    Attributes:
        down: plural name of the kind; empty for none.
    """

    down = ""

    async def request(self, request: Request) -> Response:
        if request.method == "GET" and request.path.endswith(f"/{self.down}"):
            status = {"kind": "Status", "code": 500, "reason": "InternalError", "message": f"etcd: {self.down}"}
            return Response(status=500, body=json.dumps(status).encode())
        return await super().request(request)
