"""Patterns of Go's regexp for Python's ``re``, and a bound of the work that one costs.

Go's engine reads a text once; Python's tries one choice after the other, up to exponentially many. So a pattern from a
tenant is priced before it is run: :func:`count_choices` is never less than the number of ways that ``re`` can try.
"""

import re
from functools import lru_cache

#: POSIX classes inside brackets, which Python lacks.
_POSIX = {
    "[:alpha:]": "A-Za-z",
    "[:digit:]": "0-9",
    "[:alnum:]": "A-Za-z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    "[:xdigit:]": "0-9A-Fa-f",
    "[:word:]": r"\w",
}
_GO_END = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$|\(\?P?<|\(\?[=!]|\(\?<[=!]", re.DOTALL)
#: Largest number of repetitions that Go's regexp takes (regexp/syntax: "invalid repeat count").
_REPETITIONS = 1000
#: Parts of a pattern that matter for the number of choices.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[(|)]|[*+?]\??|\{(\d+)(?:(,)(\d*))?\}\??|.", re.DOTALL)


def _translate(found: re.Match[str]) -> str:
    text = found.group()
    if text == "$":
        return r"\Z"
    if text in ("(?=", "(?!", "(?<=", "(?<!"):
        raise re.error("invalid or unsupported Perl syntax: `" + text + "`")
    if text == "(?<":
        return "(?P<"
    if text.startswith("["):
        for name, chars in _POSIX.items():
            text = text.replace(name, chars)
    return {r"\z": r"\Z", r"\pL": r"[^\W\d_]", r"\pN": r"\d"}.get(text, text)


@lru_cache(maxsize=1024)
def go_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern of Go's regexp, for use with ``search``.

    Raises:
        re.error: the pattern is not valid, or uses something that Go refuses.
    """
    for part in _PART.finditer(pattern):
        if max(map(_number, filter(None, (part[1], part[3]))), default=0) > _REPETITIONS:
            raise re.error(f"invalid repeat count: `{part.group()[:32]}`")
    try:
        return re.compile(_GO_END.sub(_translate, pattern), re.ASCII)
    except (ValueError, OverflowError) as error:  # flags that Go lacks
        raise re.error(str(error)) from None


def count_choices(pattern: str, length: int) -> float:
    """Returns an upper bound of the ways to match a pattern with the beginning of a text; infinity if it is huge.

    Args:
        pattern: the pattern.
        length: characters of the text.
    """
    groups: list[float] = []  # product of the choices before each open group
    product, last, alternatives = 1.0, 1.0, [0.0]  # of the open group; of its last atom; of its finished branches
    for part in _PART.finditer(pattern):
        text = part.group()
        if text == "(":
            groups.append(product)
            product, last = 1.0, 1.0
            alternatives.append(0.0)
        elif text == "|":
            alternatives[-1] += product
            product, last = 1.0, 1.0
        elif text == ")" and groups:
            last = alternatives.pop() + product
            product = groups.pop() * last
        elif text[0] in "*+?{" and (len(text) > 1 or text != "{"):
            product *= _repetitions(text, part, length) * _power(last, _most(text, part, length) - 1)
            last = 1.0
        else:
            last = 1.0
    return alternatives[0] + product


def _most(text: str, part: re.Match[str], length: int) -> int:
    if text[0] == "?":
        return 1
    if text[0] in "*+" or (part[2] and not part[3]):
        return length + 1
    return _number(part[3] or part[1])


def _repetitions(text: str, part: re.Match[str], length: int) -> int:
    """The numbers of times that a repetition may try."""
    most = _most(text, part, length)
    least = _number(part[1]) if part[1] else int(text[0] == "+")
    return max(most - least, 0) + 1


def _number(digits: str) -> int:
    """A number of repetitions; one that :func:`go_pattern` refuses counts as one more than it takes."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(_REPETITIONS)) else _REPETITIONS + 1


def _power(base: float, exponent: int) -> float:
    try:
        return base ** max(exponent, 0)
    except OverflowError:
        return float("inf")
