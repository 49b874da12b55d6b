"""Syntax of the Common Expression Language: text to a tree.

The parser refuses a text that is not CEL and names the position. :mod:`tessera.cel.evaluator` refuses, by
name, correct CEL that it cannot compute.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from tessera.limits import Limit

EXPRESSION_DEPTH = Limit(
    32,
    "brackets",
    "nesting of a CEL expression",
    "kube-apiserver refuses deeper ones too; selectors of devices have 3",
)
EXPRESSION_CHAIN = Limit(
    100,
    "operators or selections",
    "one row of a CEL expression without brackets",
    "longer ones are generated; a list with `in` says the same",
)


class CelExpression(msgspec.Struct, frozen=True):
    """One node; ``at`` is its offset in the text."""

    at: int


class Literal(CelExpression, frozen=True):
    """A constant."""

    value: Any


class Identifier(CelExpression, frozen=True):
    """A variable."""

    name: str


class Select(CelExpression, frozen=True):
    """``target.field``; ``optional`` for ``target.?field``."""

    target: CelExpression
    field: str
    optional: bool = False


class Index(CelExpression, frozen=True):
    """``target[key]``; ``optional`` for ``target[?key]``."""

    target: CelExpression
    key: CelExpression
    optional: bool = False


class Call(CelExpression, frozen=True):
    """``name(args)`` or ``target.name(args)``; an operator is a call whose name is its sign."""

    name: str
    target: CelExpression | None
    args: tuple[CelExpression, ...]


class ListLiteral(CelExpression, frozen=True):
    """``[a, b]``."""

    items: tuple[CelExpression, ...]


class MapLiteral(CelExpression, frozen=True):
    """``{k: v}``."""

    entries: tuple[tuple[CelExpression, CelExpression], ...]


def children(node: CelExpression) -> Iterator[CelExpression]:
    """Yields the direct parts of a node."""
    match node:
        case Select(target=target):
            yield target
        case Index(target=target, key=key):
            yield from (target, key)
        case Call(target=target, args=args):
            yield from args if target is None else (target, *args)
        case ListLiteral(items=items):
            yield from items
        case MapLiteral(entries=entries):
            yield from (part for entry in entries for part in entry)
        case _:
            pass


class CelError(ValueError):
    """The text is not an expression, or uses something that is not supported."""


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
      | (?P<int>0[xX][0-9a-fA-F]+|\d+)(?![uU\w])
      | (?P<text>[rR]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      | (?P<name>[A-Za-z_]\w*(?!["']))
      | (?P<sign>\|\||&&|==|!=|<=|>=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xX][0-9a-fA-F]{2}|[0-3][0-7]{2}|.)", re.DOTALL)
_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")
_CONSTANTS = {"true": True, "false": False, "null": None}
_RESERVED = frozenset(
    {
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "namespace",
        "package",
        "return",
        "var",
        "void",
        "while",
    }
)


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise CelError(f"syntax error at {at}: {text[at : at + 20]!r} is not understood")
        if match.lastgroup != "space":
            found.append(_Token(match.lastgroup, match.group(), at))
        at = match.end()
    found.append(_Token("end", "", at))
    return found


def _integer(token: _Token) -> int:
    """The number; one more than the largest is left for a minus before it."""
    value = int(token.text, 16 if token.text[:2] in ("0x", "0X") else 10) if len(token.text) <= 20 else 2**64
    if value > 2**63:
        raise CelError(f"syntax error at {token.at}: the integer is out of range")
    return value


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "uUxX" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    if len(escape) == 3:
        return chr(int(escape, 8))
    return _ESCAPES.get(escape, escape)


def _string(text: str) -> str:
    raw = text[0] in "rR"
    text = text[1:] if raw else text
    width = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1
    body = text[width:-width]
    return body if raw else _ESCAPE.sub(_unescape, body)


@lru_cache(maxsize=1024)
def parse(text: str) -> CelExpression:
    """Parses an expression. Results are cached, as all labs in a process compile the same policies.

    Raises:
        CelError: the text is not an expression.
    """
    parser = _Parser(_tokens(text))
    tree = parser.expression()
    parser.end()
    return tree


class _Parser:
    """Recursive descent over the grammar's levels."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def end(self) -> None:
        token = self._tokens[self._next]
        if token.kind != "end":
            raise CelError(f"syntax error at {token.at}: unexpected {token.text!r}")

    def expression(self) -> CelExpression:
        self._depth += 1
        if self._depth > EXPRESSION_DEPTH:
            raise CelError(f"the expression is nested deeper than {EXPRESSION_DEPTH}")
        condition = self._binary(("||",), lambda: self._binary(("&&",), self._relation))
        at = self._peek().at
        if self._take("?"):
            yes = self.expression()
            self._expect(":")
            condition = Call(at, "?:", None, (condition, yes, self.expression()))
        self._depth -= 1
        return condition

    def _relation(self) -> CelExpression:
        return self._binary(
            _RELATIONS, lambda: self._binary(("+", "-"), lambda: self._binary(("*", "/", "%"), self._unary))
        )

    def _binary(self, signs: tuple[str, ...], operand: Callable[[], CelExpression]) -> CelExpression:
        remaining = operand()
        length = 0
        while self._peek().text in signs and self._peek().kind in ("sign", "name"):
            token = self._advance()
            length += 1
            self._limit(length)
            remaining = Call(token.at, token.text, None, (remaining, operand()))
        return remaining

    def _limit(self, length: int) -> None:
        if length > EXPRESSION_CHAIN:
            raise CelError(f"more than {EXPRESSION_CHAIN} operators or selections in a row")

    def _unary(self) -> CelExpression:
        signs: list[_Token] = []
        while self._peek().kind == "sign" and self._peek().text in ("!", "-"):
            signs.append(self._advance())
            self._limit(len(signs))
        found = self._member()
        for token in reversed(signs):
            found = Call(token.at, f"{token.text}_", None, (found,))
        return found

    def _member(self) -> CelExpression:
        found = self._primary()
        length = 0
        while True:
            token = self._peek()
            length += 1
            self._limit(length)
            if self._take(".") or self._take(".?"):
                found = self._field(found, optional=token.text == ".?")
            elif self._take("[") or self._take("[?"):
                key = self.expression()
                self._expect("]")
                found = Index(token.at, found, key, token.text == "[?")
            else:
                return found

    def _field(self, target: CelExpression, *, optional: bool) -> CelExpression:
        token = self._advance()
        if token.kind != "name":
            raise CelError(f"syntax error at {token.at}: a field name is expected, not {token.text!r}")
        if not optional and self._take("("):
            return Call(token.at, token.text, target, self._args(")"))
        return Select(token.at, target, token.text, optional)

    def _primary(self) -> CelExpression:
        token = self._advance()
        match token.kind:
            case "int":
                return Literal(token.at, _integer(token))
            case "float":
                return Literal(token.at, float(token.text))
            case "text":
                return Literal(token.at, _string(token.text))
            case "name":
                return self._parse_name(token)
        if token.text == "(":
            inner = self.expression()
            self._expect(")")
            return inner
        if token.text == "[":
            return ListLiteral(token.at, self._args("]"))
        if token.text == "{":
            return self._map(token.at)
        shown = repr(token.text) if token.text else "the end"
        raise CelError(f"syntax error at {token.at}: an expression is expected, not {shown}")

    def _parse_name(self, token: _Token) -> CelExpression:
        if token.text in _CONSTANTS:
            return Literal(token.at, _CONSTANTS[token.text])
        if token.text in _RESERVED or token.text == "in":
            raise CelError(f"syntax error at {token.at}: {token.text!r} is a reserved word")
        if self._take("("):
            return Call(token.at, token.text, None, self._args(")"))
        return Identifier(token.at, token.text)

    def _args(self, closing: str) -> tuple[CelExpression, ...]:
        found: list[CelExpression] = []
        while not self._take(closing):
            if found:
                self._expect(",")
                if closing != ")" and self._take(closing):
                    break
            found.append(self.expression())
        return tuple(found)

    def _map(self, at: int) -> CelExpression:
        entries: list[tuple[CelExpression, CelExpression]] = []
        while not self._take("}"):
            if entries:
                self._expect(",")
                if self._take("}"):
                    break
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
        return MapLiteral(at, tuple(entries))

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _take(self, text: str) -> bool:
        if self._peek().kind == "sign" and self._peek().text == text:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        token = self._peek()
        if not self._take(text):
            shown = repr(token.text) if token.text else "the end"
            raise CelError(f"syntax error at {token.at}: {text!r} is expected, not {shown}")
