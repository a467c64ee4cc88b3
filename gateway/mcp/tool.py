"""What a tool is: a name, a description, argument and result models, hints, and one call of the application.

Refuses to know: MCP message types, HTTP, sessions. `gateway.mcp.tools.*` define one each, `gateway.mcp.server` serves
them, `gateway.mcp.catalogue` puts them in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.application import Application
from gateway.errors import Code, ToolError


class Arguments(BaseModel):
    """Base of all argument models: strict types, closed to unknown arguments (ENV-4), immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


A = TypeVar("A", bound=Arguments)
MAX_NAMED = 20
"""Unknown arguments that an error names, and looks at: it has to stay small whatever was sent."""
_NAME_CHARS = 80

# `ToolError.to_structured`, under its key.
_FAILURE: dict[str, Any] = {
    "type": "object",
    "description": "In place of the rest, with isError.",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "retryable": {"type": "boolean"},
        "details": {"type": "object"},
        "operation_id": {"type": "string"},
        "approval_id": {"type": "string"},
    },
    "required": ["code", "message", "retryable", "details"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Hints:
    """The annotations of a tool, as MCP names them. No tool reaches outside the appliance: openWorldHint is false."""

    read_only: bool
    destructive: bool
    idempotent: bool


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One listed tool. `call` raises `ToolError`; its answer is an instance of `result`, or of a base of it that lacks
    optional fields.

    `resume`: goes on with the call's hold of that id, if the call may be held; answers as `call` does.
    `description` is all an agent has to work from. Tools that change something say in it that a lost response is not a
    failed execution, and what to do instead of sending the call again (TOOL-3).
    """

    name: str
    title: str
    description: str
    arguments: type[A]
    result: type[BaseModel]
    hints: Hints
    call: Callable[[Application, A], Awaitable[BaseModel]]
    resume: Callable[[Application, A, str], Awaitable[BaseModel]] | None = None

    def parse(self, arguments: Mapping[str, Any] | None) -> A:
        """Raises `ToolError` INVALID_ARGUMENT that names the first offending argument; `details.arguments` names
        others as well, MAX_NAMED unknown ones at most."""
        given = {} if arguments is None else arguments
        known = self.arguments.model_fields
        unknown = [name for name in given if name not in known]
        if len(unknown) > MAX_NAMED:
            dropped = set(unknown[MAX_NAMED:])
            given = {name: value for name, value in given.items() if name not in dropped}
        nulls = sorted(name for name, value in given.items() if value is None and name in known)
        if nulls:
            raise self._refused([(nulls[0], f'argument "{nulls[0]}" must not be null; leave it out instead')])
        broken = [name for name, value in given.items() if not (_is_unicode(name) and _is_unicode(value))]
        if broken:
            name = ascii(broken[0])[1:-1][:_NAME_CHARS]
            raise self._refused([(name, f'argument "{name}" of {self.name}: holds half of a surrogate pair, no text')])
        try:
            return self.arguments.model_validate(given)
        except ValidationError as error:
            raise self._refused(
                [
                    self._problem(e["loc"], e["type"], e["msg"])
                    for e in error.errors(include_url=False, include_context=False, include_input=False)
                ]
            ) from None

    async def run(
        self, application: Application, arguments: Mapping[str, Any] | None, approval_id: str | None = None
    ) -> BaseModel:
        """`approval_id`: the hold to go on with."""
        parsed = self.parse(arguments)
        if approval_id is None or self.resume is None:
            return await self.call(application, parsed)
        return await self.resume(application, parsed, approval_id)

    def _problem(self, location: tuple[int | str, ...], kind: str, message: str) -> tuple[str, str]:
        name = ".".join(str(part)[:_NAME_CHARS] for part in location) or "arguments"
        if kind == "extra_forbidden":
            accepted = ", ".join(self.arguments.model_fields) or "none"
            return name, f'argument "{name}" is refused and grants nothing; {self.name} accepts: {accepted}'
        if kind == "missing":
            return name, f'argument "{name}" is required by {self.name}'
        return name, f'argument "{name}" of {self.name}: {message[:1].lower()}{message[1:]}'

    def _refused(self, problems: list[tuple[str, str]]) -> ToolError:
        return ToolError(
            Code.INVALID_ARGUMENT,
            problems[0][1],
            details={
                "argument": problems[0][0],
                **({"arguments": [name for name, _ in problems]} if len(problems) > 1 else {}),
            },
        )

    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments: an object, closed, without null."""
        return plain_schema(self.arguments.model_json_schema(mode="validation"))

    def output_schema(self) -> dict[str, Any]:
        """JSON Schema of the structured result: absent optional fields are omitted, never null.

        It admits a failure's `error` as well. Clients of several makes hold every structured result to this schema,
        those with isError too, and would show their own complaint in place of the tool's error.
        """
        schema = plain_schema(self.result.model_json_schema(mode="serialization"), results=True)
        required = schema.pop("required", [])
        schema["properties"]["error"] = _FAILURE
        schema["anyOf"] = [{"required": required}, {"required": ["error"]}]
        return schema


def _is_unicode(value: object) -> bool:
    """JSON can escape half a surrogate pair, which is no character and cannot be written anywhere. Not recursive: JSON
    nests deeper than calls may."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value.isascii():
                continue
            try:
                value.encode()
            except UnicodeEncodeError:
                return False
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
    return True


def plain_schema(schema: dict[str, Any], *, results: bool = False) -> dict[str, Any]:
    """What pydantic generates, without titles, model docstrings and null alternatives.

    With `results` a field that has a default is required unless it may be None: the wire leaves out None and nothing
    else.
    """
    plain = _walk(schema, results=results)
    assert isinstance(plain, dict)
    return plain


def _walk(node: Any, *, results: bool) -> Any:
    if isinstance(node, list):
        return [_walk(item, results=results) for item in node]
    if not isinstance(node, dict):
        return node
    branches = node.get("anyOf")
    if isinstance(branches, list) and {"type": "null"} in branches:
        rest = [branch for branch in branches if branch != {"type": "null"}]
        base = {k: v for k, v in node.items() if k not in ("anyOf", "default")}
        node = {**base, **rest[0]} if len(rest) == 1 else {**base, "anyOf": rest}
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs") and isinstance(value, dict):
            out[key] = {name: _walk(child, results=results) for name, child in value.items()}
        elif key == "description" and "properties" in node:
            continue
        elif key == "const" and "type" in node:
            out["enum"] = [value]
        elif key == "default" and results:
            continue
        else:
            out[key] = _walk(value, results=results) if key != "default" else value
    if results and "properties" in node:
        optional = {n for n, p in node["properties"].items() if isinstance(p, dict) and _may_be_none(p)}
        out["required"] = [name for name in node["properties"] if name not in optional]
    return out


def _may_be_none(field: dict[str, Any]) -> bool:
    branches = field.get("anyOf")
    return isinstance(branches, list) and {"type": "null"} in branches
