"""Random texts of JSON schemas: a walk takes a random token among those the mask allows, which is the worst that a
model can do. Every text that ends must parse and validate under `jsonschema`, with formats; every walk must be able to
end; every forced token must be in the mask. QUERN_TEXTS sets how many texts each class gets (1,000)."""

import ctypes
import json
import os
import re

import jsonschema
import pytest

from grammar_schema import COMPACT, FLEXIBLE, SPACED, Schema, byte_vocab, real_vocab

TEXTS = int(os.environ.get("QUERN_TEXTS", "1000"))  # of each class
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
TREE = {"type": "object", "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 9},
                                         "left": {"$ref": "#"}, "right": {"$ref": "#"}},
        "required": ["value"], "additionalProperties": False}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 3},
        "address": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                                      "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                    "required": ["city"], "additionalProperties": False},
    },
    "required": ["name", "address"],
    "additionalProperties": False,
}
# Without uri-template and relative-json-pointer: the other side refuses {a:1000} and 10/a, which their texts allow.
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference",
           "json-pointer"]
CLASSES = {
    "anything": [True],
    "objects": [
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "required": ["x", "y"], "properties": {"y": {"type": "boolean"}}},
        {"type": "object", "patternProperties": {"^n": {"type": "integer"}, "s$": {"maxLength": 2}},
         "additionalProperties": False},
        {"type": "object", "propertyNames": {"pattern": "^[ab]{1,20}$"}, "maxProperties": 3},
        {"type": "object", "properties": {k: {"type": "integer", "maximum": 9} for k in "abcdef"}, "minProperties": 2,
         "maxProperties": 4, "additionalProperties": False},
        {"type": "object", "allOf": [{"properties": {"a": {"type": "null"}}}], "properties": {"b": {"type": "boolean"}},
         "unevaluatedProperties": False},
        {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    ],
    "nested": [PERSON, {"type": "array", "items": PERSON, "maxItems": 2}],
    "arrays": [
        {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 5}, "minItems": 2, "maxItems": 4},
        {"type": "array", "prefixItems": [{"const": "x"}, {"type": "boolean"}], "items": {"type": "null"},
         "maxItems": 5},
        {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False},
        {"type": "array", "contains": {"const": 1}, "minContains": 1, "maxContains": 2, "maxItems": 4,
         "items": {"type": "integer", "minimum": 0, "maximum": 3}},
        {"$schema": DRAFT_07, "items": [{"type": "boolean"}], "additionalItems": {"type": "null"}, "type": "array"},
    ],
    "strings": [
        {"type": "string"},
        {"type": "string", "minLength": 3, "maxLength": 5},
        {"type": "string", "pattern": "^(ab|cd)+[0-9]{2,3}$"},
        {"type": "string", "pattern": "x.*y", "maxLength": 20},
        {"type": "string", "allOf": [{"pattern": "^[a-m]*$"}, {"pattern": "^[g-z]*$"}, {"minLength": 1}]},
        {"type": "string", "not": {"pattern": "[a-z]"}, "maxLength": 9},
    ],
    "numbers": [
        {"type": "integer"},
        {"type": "number"},
        {"type": "integer", "minimum": -17, "maximum": 4096},
        {"type": "number", "minimum": -1.5, "maximum": 0.25},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-3},
        {"type": "number", "minimum": 1e20},
        {"type": "integer", "multipleOf": 7, "minimum": 100, "maximum": 1000},
        {"type": "integer", "multipleOf": 25},
        {"type": "integer", "exclusiveMaximum": -99},
        {"type": "number", "not": {"type": "integer"}},
    ],
    "enums": [
        {"enum": ["red", "green", "blue", "é\n\"", 1, 2.5, None, True, [1, {"a": None}], {"k": "v"}]},
        {"const": {"a": [1, 2.5, "x"], "b": None}},
        {"enum": [f"word-{i}" for i in range(300)]},
        {"type": "string", "enum": ["a", "bb", "ccc"], "maxLength": 2},
    ],
    "any, one and all of": [
        {"anyOf": [{"type": "integer", "maximum": 3}, {"type": "string", "maxLength": 2}, {"type": "null"}]},
        {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]},
        {"oneOf": [{"type": "object", "properties": {"t": {"const": t}, t: {"type": "boolean"}}, "required": ["t", t],
                    "additionalProperties": False} for t in ("cat", "cow", "dog")]},
        {"allOf": [{"type": "object", "properties": {"a": {"minimum": 2}}},
                   {"properties": {"a": {"type": "integer", "maximum": 5}}, "required": ["a"], "maxProperties": 2}]},
        {"type": "object", "properties": {"k": {"enum": [1, 2]}, "x": {"type": "null"}}, "required": ["k"],
         "additionalProperties": False, "if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}},
    ],
    "recursion": [TREE, {"$defs": {"e": {"anyOf": [{"type": "integer"}, {"type": "array", "prefixItems": [
        {"enum": ["+", "*"]}, {"$ref": "#/$defs/e"}, {"$ref": "#/$defs/e"}], "minItems": 3, "items": False}]}},
        "$ref": "#/$defs/e"}],
    "formats": [{"type": "string", "format": f} for f in FORMATS],
}


@pytest.fixture(scope="module")
def vocabs():
    return {"bytes": byte_vocab(), "real": real_vocab()}


def validator(schema):
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return cls(schema, format_checker=cls.FORMAT_CHECKER)


def check(judge, schema, text):
    value = json.loads(text.decode("utf-8"))  # UTF-8 and JSON, or it raises
    if isinstance(schema, dict) and schema.get("format") in ("time", "date-time"):
        value = re.sub(":60", ":59", value)  # a leap second is in the RFC, and not in datetime
    judge.validate(value)
    return value


def test_the_format_checker_is_complete():
    """Each format is looked at by the other side too: a text that is none is refused there."""
    missing = [f for f in FORMATS if validator({"format": f}).is_valid("\u0001 not any of these ~2{")]
    assert missing == []


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("kind", ["bytes", "real"])
def test_random_texts_validate(vocabs, name, kind):
    schemas = CLASSES[name]
    per_schema = -(-TEXTS // (2 * len(schemas)))
    jumps, seen = ctypes.c_uint64(), set()
    for i, schema in enumerate(schemas):
        judge = validator(schema)
        whitespace = [SPACED, COMPACT, FLEXIBLE][i % 3]
        grammar = Schema(vocabs[kind], schema, whitespace)
        for seed in range(per_schema):
            text = grammar.generate(seed + 1000 * i, jumps=jumps)
            check(judge, schema, text)
            seen.add(text)
            assert grammar.matches(text)
    assert len(seen) > 10, "they are hardly random"


def test_a_planted_error_is_seen(vocabs):
    """Texts of a slightly wider schema do not all validate under the narrower one."""
    wide = {"type": "integer", "minimum": 0, "maximum": 101}
    grammar, judge = Schema(vocabs["bytes"], wide), validator({**wide, "maximum": 100})
    texts = {grammar.generate(seed) for seed in range(3000)}
    assert not all(judge.is_valid(json.loads(t)) for t in texts)
