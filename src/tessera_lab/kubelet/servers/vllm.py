"""vLLM's HTTP API as far as clients of completions and scrapers use it, without a model.

Each answer says that it is simulated: its words are those of one sentence, as many as ``max_tokens`` asks for. Fields
of sampling have nothing to act on and are ignored, as vLLM ignores unknown ones; streams and choices are refused.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Annotated, Any

import msgspec

from tessera.kube.client.requests import Request, Response

#: What the stand-in says instead of a model.
SENTENCE = "simulated: no model runs in this lab"
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_JSON = {"content-type": "application/json"}


class _Asked(msgspec.Struct):
    """A request for a completion; the defaults are vLLM's."""

    model: str = ""
    prompt: str | list[str] = ""
    messages: list[dict[str, Any]] = []
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    stream: bool = False
    n: int = 1


class Tokens(msgspec.Struct):
    """What a server counted since its start.

    Attributes:
        requests: requests that were answered.
        prompt: tokens of their prompts.
        generated: tokens of their answers.
    """

    requests: int = 0
    prompt: int = 0
    generated: int = 0


class VllmApi:
    """One server's API.

    Args:
        model: the served model's name; empty to serve any.

    Attributes:
        tokens: what it counted.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self.tokens = Tokens()

    def is_work(self, request: Request) -> bool:
        """True if a request is for a completion, which takes time and a place."""
        return request.method == "POST" and request.path in {_COMPLETIONS, _CHAT}

    def answer(self, request: Request, now: float, *, running: int, waiting: int) -> Response:
        """Answers a request.

        Args:
            request: the request.
            now: seconds since 1970.
            running: requests that are worked on.
            waiting: requests that wait.
        """
        match request.method, request.path:
            case "POST", "/v1/completions" | "/v1/chat/completions":
                return self._complete(request, now)
            case "GET", "/health":
                return Response(status=200)
            case "GET", "/version":
                return _json(200, {"version": "simulated"})
            case "GET", "/v1/models":
                entry = {"id": self._model, "object": "model", "created": int(now), "owned_by": "simulated"}
                return _json(200, {"object": "list", "data": [entry]})
            case "GET", "/metrics":
                text = self._metrics(running, waiting)
                return Response(status=200, headers={"content-type": "text/plain; version=0.0.4"}, body=text.encode())
            case _:
                return _json(404, {"detail": "Not Found"})

    def _complete(self, request: Request, now: float) -> Response:
        try:
            asked = msgspec.json.decode(request.body, type=_Asked)
        except (msgspec.DecodeError, RecursionError) as error:
            return _refused(400, f"{error}")
        if self._model and asked.model not in {"", self._model}:
            return _refused(404, f"The model `{asked.model}` does not exist.")
        if asked.stream or asked.n != 1:
            return _refused(400, "simulated: the lab's stand-in has neither stream nor more than one choice")
        chat = request.path == _CHAT
        count = asked.max_tokens or (len(SENTENCE.split()) if chat else 16)
        text = " ".join(islice(cycle(SENTENCE.split()), count))
        prompt = _count_tokens([str(each.get("content", "")) for each in asked.messages] if chat else asked.prompt)
        self.tokens.requests += 1
        self.tokens.prompt += prompt
        self.tokens.generated += count
        said: Mapping[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": f" {text}"}
        answer = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.tokens.requests:032x}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(now),
            "model": self._model or asked.model,
            "system_fingerprint": "simulated",
            "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count},
        }
        return _json(200, answer)

    def _metrics(self, running: int, waiting: int) -> str:
        """The page of metrics: names and labels of vLLM (docs.vllm.ai, production metrics) for one engine."""
        label = self._model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        rows = (
            ("gauge", "vllm:num_requests_running", "", running),
            ("gauge", "vllm:num_requests_waiting", "", waiting),
            ("counter", "vllm:request_success_total", ',finished_reason="length"', self.tokens.requests),
            ("counter", "vllm:prompt_tokens_total", "", self.tokens.prompt),
            ("counter", "vllm:generation_tokens_total", "", self.tokens.generated),
        )
        return "".join(
            f'# TYPE {name} {kind}\n{name}{{engine="0",model_name="{label}"{more}}} {float(value)}\n'
            for kind, name, more, value in rows
        )


def _count_tokens(prompt: str | Sequence[str]) -> int:
    """Words of the prompts, and one more for the begin of each."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    return sum(len(each.split()) + 1 for each in prompts)


def _refused(status: int, message: str) -> Response:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})


def _json(status: int, document: Any) -> Response:
    return Response(status=status, headers=_JSON, body=msgspec.json.encode(document))
