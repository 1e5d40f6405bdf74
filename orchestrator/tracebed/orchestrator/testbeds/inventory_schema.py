"""The JSON schema of inventories, from the models of their keys and of the settings of providers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tracebed.orchestrator.testbeds.inventory_keys import FileKeys, GroupKeys, NodeItem, NodeKeys, settings_of
from tracebed.orchestrator.testbeds.provider import PROVIDERS

ID = "tracebed-inventory-1.json"
REFERENCE = {"type": "string", "pattern": r"\{[A-Za-z_]\w*\}"}
"""A string with a reference to a variable, which may have the place of any value."""
NAME_PATTERN = r"^[\w.-]+$"


def inventory_schema(providers: list[str] | None = None) -> dict[str, Any]:
    """Return the JSON schema of inventories.

    Args:
        providers: the providers whose settings the schema has; None: all that are installed.
    """
    names = PROVIDERS.names() if providers is None else providers
    defs: dict[str, Any] = {}
    settings = {name: _keys(settings_of(name), defs, f"{name}_") for name in names}
    of_group, of_node = _keys(GroupKeys, defs), _keys(NodeItem, defs)
    defs["node"] = {"description": NodeItem.__doc__, **_closed(of_node, ["name"])}
    listed = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/node"}]}}
    of_group["nodes"] = {
        "description": of_group["nodes"]["description"],
        "anyOf": [{"type": "string"}, listed],
    }
    of_group["provider"]["enum"] = names
    defs["group"] = {
        "description": "A group of nodes. Its keys are defaults of its nodes, or settings of its provider.",
        # A group without the key `provider` may have the provider of `defaults`.
        "anyOf": [_closed(of_group | {"provider": {"const": name}} | settings[name], ["nodes"]) for name in names],
    }
    every = {key: value for keys in settings.values() for key, value in keys.items()}
    file = _keys(FileKeys, defs, references=False)
    file["defaults"] = {
        "description": file["defaults"]["description"],
        **_closed({key: of_group[key] for key in (*NodeKeys.model_fields, "provider")} | every, []),
    }
    file["nodes"] = {"description": file["nodes"]["description"], **listed}
    file["groups"] = {
        "description": file["groups"]["description"],
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": NAME_PATTERN},
        "additionalProperties": {"$ref": "#/$defs/group"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "Inventory of tracebed",
        **_closed(file, []),
        "oneOf": [{"required": ["nodes"]}, {"required": ["groups"]}],
        "$defs": dict(sorted(defs.items())),
    }


def _keys(model: type[BaseModel], defs: dict[str, Any], prefix: str = "", *, references: bool = True) -> dict[str, Any]:
    """Return the schema of each key of a model, and add the definitions that they refer to.

    Args:
        prefix: first part of the names of the added definitions.
        references: whether a value may be a reference to a variable.
    """
    found = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    defs |= {prefix + name: value for name, value in found.get("$defs", {}).items()}
    keys: dict[str, Any] = {}
    for name, schema in found.get("properties", {}).items():
        schema.pop("title", None)
        if schema.get("default") is None:
            schema.pop("default", None)
        types = {schema.get("type"), *(of.get("type") for of in schema.get("anyOf", ()))}
        if references and name != "vars" and "string" not in types:
            description = {key: schema.pop(key) for key in ("description", "default") if key in schema}
            of = schema.pop("anyOf", None) or [schema]
            schema = {**description, "anyOf": [*of, REFERENCE]}
        keys[name] = schema
    return keys


def _closed(keys: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the schema of a mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": keys,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }
