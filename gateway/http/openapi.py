"""The OpenAPI 3.1 description of the inbox, made from its table of endpoints. Pure.

Refuses to know: routes, handlers. Called by `gateway.http.inbox`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from gateway.http.inbox_api import Endpoint

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "malformed",
    "401": "no token, or not the right one",
    "403": "refused",
    "404": "unknown",
    "409": "in conflict with its present state",
}


def describe(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """JSON values. Every endpoint, with its body, its answer and the errors of all."""
    schemas: dict[str, Any] = {"Error": _error_schema()}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CodeSpace inbox",
            "version": version,
            "description": "Where a user follows works, writes instructions, stops what runs, and decides on holds.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    parameters += [
        {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
        for name, about in endpoint.query.items()
    ]
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    responses: dict[str, Any] = {
        str(endpoint.status): {
            "description": "done",
            "content": {"application/json": {"schema": _schema(endpoint.answer, "serialization", schemas)}},
        }
    }
    responses |= {status: {"description": text, "content": error} for status, text in _ERRORS.items()}
    operation: dict[str, Any] = {"summary": endpoint.about, "parameters": parameters, "responses": responses}
    if endpoint.body is not None:
        body = _schema(endpoint.body, "validation", schemas)
        required = any(field.is_required() for field in endpoint.body.model_fields.values())
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    return operation


def _schema(model: Any, mode: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema(mode=mode, ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    return schema


def _error_schema() -> dict[str, Any]:
    error = {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "message": {"type": "string"},
            "retryable": {"type": "boolean"},
            "details": {"type": "object"},
        },
        "required": ["message"],
    }
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
