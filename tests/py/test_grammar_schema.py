"""JSON schemas as grammars. The official test suite is the oracle, where the shared data folder is there: what it calls
valid is accepted, what it calls invalid is not, and what is refused is counted by keyword (`pytest -rP` prints the
table of docs/structured-output.md). The cases below are our own, so that a clone tests the same things."""

import collections
import json

import pytest

from grammar_schema import (COMPACT, FLEXIBLE, SPACED, SUITE, Refused, Schema, byte_vocab, orders, suite)

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
CLOSED = {**OBJECT, "additionalProperties": False}
LIST = {
    "$defs": {"list": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [
        {"type": "null"}, {"$ref": "#/$defs/list"}]}}, "required": ["v", "next"], "additionalProperties": False}},
    "$ref": "#/$defs/list",
}
# (schema, values that satisfy it, values that do not)
CASES = [
    (True, [None, 1, "a", [], {"a": [1, {}]}], []),
    ({"type": "integer"}, [0, -3, 12, 1.0, 10**52], [1.5, "1", None, 0.1, 1e16, 1e308]),
    ({"type": "number"}, [0, -0.5, 1e-7, 1.5e300, 123456789.123], ["1", True]),
    ({"type": ["string", "null"]}, ["", "a\n\"é\u0000", None], [1, [], False]),
    ({"type": "string", "nullable": True}, ["a", None], [1]),
    ({"minimum": -1.5, "exclusiveMaximum": 2}, [-1.5, -1, 0, 1.9999, -0.0, "x"], [-1.51, 2, 2.0, 3, 1e3, -1e-0 * 2]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.001}, [0.001, 0.0001, 1e-300], [0, 0.0, 0.0011, -1e-9]),
    ({"type": "integer", "minimum": 5, "maximum": 1234}, [5, 99, 100, 1234, 12.0], [4, 1235, -5, 5000, 0, 6.5]),
    ({"type": "integer", "minimum": -1234, "maximum": -5}, [-5, -1234, -99], [-4, -1235, 5, 0]),
    ({"multipleOf": 7}, [0, 7, -14, 7.0, 7007, "x"], [1, 8, 7.5, 0.7]),
    ({"multipleOf": 0.05}, [0.05, 1, 2.15, -0.1], [0.01, 0.051]),
    ({"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 20}, [12, 15, 18], [10, 9, 21, 20]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "日本語", "\U0001F600\U0001F600"], ["a", "abcd", ""]),
    ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ["a", "aa"], ["aaa", "b", ""]),
    ({"pattern": "b"}, ["abc", "b", 1], ["ac"]),
    ({"enum": ["red", 1, None, [1], {"a": 2}]}, ["red", 1, 1.0, None, [1], {"a": 2}], ["re", 2, [], {"a": 1}, False]),
    ({"const": {"b": 1, "a": "x"}}, [{"a": "x", "b": 1}], [{"a": "x"}, {"a": "x", "b": 2}, {"a": "x", "b": 1, "c": 1}]),
    (OBJECT, [{"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "z": [1]}], [{}, {"b": "x"}, {"a": "x"}, {"a": 1, "b": 2}, []]),
    (CLOSED, [{"a": 1}, {"a": 1, "b": "x"}], [{"a": 1, "z": 1}, {}]),
    ({"additionalProperties": {"type": "integer"}, "properties": {"s": {"type": "string"}}},
     [{}, {"s": "x"}, {"s": "x", "n": 1}, {"n": 1, "m": 2}], [{"s": 1}, {"n": "x"}]),
    ({"patternProperties": {"^n": {"type": "integer"}, "x$": {"type": ["integer", "string"]}},
      "additionalProperties": False}, [{"n": 1}, {"ax": "s"}, {"nx": 1}], [{"nx": "s"}, {"a": 1}, {"n": "s"}]),
    ({"propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}], [{"abc": 1}]),
    ({"required": ["z"], "properties": {"a": {}}}, [{"z": 1}, {"a": 1, "z": 2}], [{"a": 1}]),
    ({"minProperties": 1, "maxProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}},
     [{"a": 1}, {"a": 1, "c": 1}, {"x": 1, "b": 2}], [{}, {"a": 1, "b": 1, "c": 1}, {"x": 1, "y": 2, "z": 3}]),
    ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 3}, [[1], [1, 2, 3]], [[], [1, 2, 3, 4], ["a"]]),
    ({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
     [[], [1], [1, "a"]], [["a"], [1, 2], [1, "a", 1]]),
    ({"contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
     [[1, 2], ["a", 1, "b", 2]], [[1], [1, 2, 3]]),
    ({"uniqueItems": False}, [[1, 1]], []),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [1, "a"], [1.5, "ab", None]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, "x"], [3, 1.5]),
    ({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}}, "required": ["t"]},
                {"type": "object", "properties": {"t": {"const": "b"}, "y": {"type": "string"}}, "required": ["t"]}]},
     [{"t": "a", "x": 1}, {"t": "b", "y": "s"}], [{"t": "a", "x": "s"}, {"t": "c"}, {}]),
    ({"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"type": "integer"}}, "required": ["a"]}],
      "type": "object", "properties": {"a": {"maximum": 3}}},
     [{"a": 1}, {"a": 3}], [{"a": 0}, {"a": 4}, {}, {"a": 1.5}]),
    (LIST, [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1}, {"v": 1, "next": {"v": 2}}]),
    ({"properties": {"a/b~c": {"$id": "http://x/y", "$anchor": "k", "type": "integer"},
                     "p": {"$ref": "#/properties/a~1b~0c"}, "q": {"$ref": "http://x/y#k"}}},
     [{"p": 1, "q": 2}], [{"p": "s"}, {"q": "s"}]),
    ({"not": {"type": ["string", "object"]}}, [1, None, [1]], ["a", {}]),
    ({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["x"]}, "type": "object"},
     [{"k": 1, "x": 0}, {"k": 2}, {}], [{"k": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}, 3], [{"a": 1}]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}], "additionalItems": False},
     [[], [1]], [["a"], [1, 2]]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
     [{}, {"a": 1, "b": 1}, {"c": 1, "d": 1}], [{"a": 1}, {"c": 1}]),
    ({"allOf": [{"properties": {"a": {"type": "integer"}}}], "anyOf": [{"properties": {"b": {}}, "required": ["b"]},
                                                                       {"required": ["a"]}],
      "unevaluatedProperties": False, "type": "object"},
     [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}], [{"c": 1}, {"a": 1, "c": 2}, {}]),
    ({"prefixItems": [{}], "allOf": [{"prefixItems": [{}, {"type": "string"}]}], "unevaluatedItems": {"type": "null"}},
     [[], [1], [1, "a"], [1, "a", None]], [[1, 2], [1, "a", 1]]),
    ({"format": "date-time"}, ["2024-02-29T12:30:00Z", "1999-12-31T23:59:59.123+05:30", 1],
     ["2023-02-29T12:30:00Z", "2024-01-01T24:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00"]),
    ({"format": "date"}, ["2000-02-29", "2024-12-31"], ["1900-02-29", "2024-13-01", "2024-04-31"]),
    ({"format": "time"}, ["00:00:00Z", "23:59:60Z", "05:44:60+05:45", "18:59:60.5-05:00", "23:59:60.1234-00:00"],
     ["24:00:00Z", "00:00:00", "12:00:60Z", "05:44:60-05:45", "05:44:60+05:30", "06:44:60+05:45"]),
    ({"format": "duration"}, ["P1Y2M3DT4H5M6S", "PT36H", "P2W"], ["P", "PT", "P1D2H", "1D"]),
    ({"format": "email"}, ["a.b@example.com", '"a b"@[127.0.0.1]'], ["a", "a@", ".a@b.c", "a..b@c.d"]),
    ({"format": "hostname"}, ["a", "www.example.com", "x" * 63], ["-a", "a-", "a..b", "x" * 64, "", "a_b"]),
    ({"format": "ipv4"}, ["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
    ({"format": "ipv6"}, ["::", "::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1", ":::", "12345::", "1::2::3"]),
    ({"format": "uuid"}, ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
    ({"format": "uri"}, ["http://a/b?c#d", "urn:x:y"], ["//a", "a b", "http://a/<b>"]),
    ({"format": "uri-reference"}, ["a/b", "//a", "#x", ""], ["\\a", "a b"]),
    ({"format": "json-pointer"}, ["", "/a~0b/c"], ["a", "/~2"]),
    ({"format": "uuid4"}, ["2eb8aa08-aa98-41ea-b4aa-73b441d16380"], ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"]),
    ({"type": "integer", "format": "int32"}, [2147483647, -2147483648], [2147483648, -2147483649, 1e16]),
    ({"type": "number", "format": "double", "x-note": 1, "discriminator": {"propertyName": "k"}}, [0.5], ["x"]),
]
REFUSED = [  # (schema, code, part of the sentence)
    ({"properties": {"x": {"uniqueItems": True}}}, "UNSUPPORTED", "#/properties/x/uniqueItems"),
    ({"properties": {"x": {"frobnicate": 1}}}, "UNSUPPORTED", "'frobnicate' at #/properties/x/frobnicate"),
    ({"not": {"unevaluatedProperties": False}}, "UNSUPPORTED", "#/not/unevaluatedProperties"),
    ({"contains": {}, "unevaluatedItems": False}, "UNSUPPORTED", "unevaluatedItems"),
    ({"format": "frob"}, "UNSUPPORTED", "the format 'frob'"),
    ({"items": {"type": "integer", "multipleOf": 0.5}}, "UNSUPPORTED", "'multipleOf' at #/items/multipleOf"),
    ({"$ref": "http://example.com/x.json"}, "UNSUPPORTED", "another document"),
    ({"$dynamicRef": "#x"}, "UNSUPPORTED", "$dynamicRef"),
    ({"exclusiveMinimum": True, "minimum": 1}, "UNSUPPORTED", "draft-04"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "UNSUPPORTED", "dialect"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "maxItems": 1,
      "definitions": {"a": {}}}, "UNSUPPORTED", "#/maxItems"),
    ({"not": {"patternProperties": {"a": False}}}, "UNSUPPORTED", "its opposite is not supported"),
    ({"type": "stsring"}, "INVALID", "'type' at #/type"),
    ({"properties": {"a": {"required": "a"}}}, "INVALID", "#/properties/a/required"),
    ({"minLength": -1}, "INVALID", "#/minLength"),
    ({"pattern": "("}, "INVALID", "#/pattern"),
    ({"$ref": "#/nowhere"}, "INVALID", "#/$ref"),
    ({"$ref": "#"}, "INVALID", "refers to itself"),
    (False, "INVALID", "no value can satisfy"),
    ({"type": "object", "required": ["a"], "properties": {"a": False}}, "INVALID", "no value can satisfy"),
    ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "INVALID", "no value can satisfy"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "INVALID", "no value can satisfy"),
    ({"enum": ["aa"], "maxLength": 1}, "INVALID", "no value can satisfy"),
    ([1], "INVALID", "a schema must be"),
    (b"{", "INVALID", "invalid JSON"),
    (b'{"items":' * 100000 + b"{}" + b"}" * 100000, "LIMIT", "nested deeper"),
    ({"properties": {f"p{i}": {} for i in range(20000)}}, "LIMIT", "properties"),
    ({"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(20)]}, "LIMIT", "alternatives"),
    ({"minProperties": 1000000}, "LIMIT", "minProperties"),
    ({"multipleOf": 9973, "type": "integer"}, "LIMIT", "multipleOf"),
    ({"$defs": {"a0": {}, **{f"a{i}": {"$ref": f"#/$defs/a{i - 1}"} for i in range(1, 1000)}}, "$ref": "#/$defs/a999"},
     "LIMIT", "references"),
]
# What the suite calls valid and the documented languages leave out; nothing invalid is ever accepted.
LEFT_OUT = {
    "optional/format/hostname": ("a label that begins with xn--", lambda d: "xn--" in d),
}
# Files whose tests are about what a schema does not assert, where we do, or the other way round.
NOT_COMPARED = {
    "format": "here formats are assertions, as optional/format has them",
    "optional/content": "contentEncoding and contentMediaType are annotations",
    "optional/format/unknown": "an unknown format is refused",
}


@pytest.fixture(scope="module")
def vocab():
    return byte_vocab()


@pytest.mark.parametrize("whitespace", [SPACED, COMPACT, FLEXIBLE])
def test_our_own_cases(vocab, whitespace):
    for schema, good, bad in CASES:
        grammar = Schema(vocab, schema, whitespace)
        assert [v for v in good if not grammar.accepts(v)] == [], schema
        assert [v for v in bad if grammar.accepts(v)] == [], schema


def test_a_planted_error_is_seen(vocab):
    """The comparison fails when a case lies: each list, given as the other."""
    for schema, good, bad in CASES:
        grammar = Schema(vocab, schema)
        assert all(grammar.accepts(v) for v in good) and not any(grammar.accepts(v) for v in bad)
        if good and bad:
            assert any(grammar.accepts(v) for v in bad + good) and not all(grammar.accepts(v) for v in good + bad)


def test_what_is_not_supported_is_refused_by_name(vocab):
    for schema, code, part in REFUSED:
        with pytest.raises(Refused) as refused:
            Schema(vocab, schema)
        assert (refused.value.code, part in refused.value.text) == (code, True), (str(schema)[:80], str(refused.value))


def test_members_come_in_declared_order(vocab):
    grammar = Schema(vocab, {"properties": {"b": {}, "a": {}}, "required": ["z"], "additionalProperties": {}})
    assert grammar.matches(b'{"b": 1, "a": 2, "z": 3, "free": 4}')
    assert not grammar.matches(b'{"a": 2, "b": 1, "z": 3}')
    assert not grammar.matches(b'{"z": 3, "b": 1}')
    assert not grammar.matches(b'{"b": 1, "b": 1, "z": 3}')


def test_a_declared_key_has_one_spelling(vocab):
    grammar = Schema(vocab, {"properties": {"é\n": {"type": "integer"}}})
    assert grammar.matches('{"é\\n": 1}'.encode())
    for spelling in (b'"\\u00e9\\n"', '"é\\u000a"'.encode(), b'"\\u00E9\\u000A"'):
        assert not grammar.matches(b"{" + spelling + b': "x"}'), spelling


def test_whitespace_is_what_was_asked_for(vocab):
    schema = {"type": "object", "properties": {"a": {"items": {"type": "integer"}}, "b": {}}}
    texts = {"spaced": b'{"a": [1, 2], "b": {}}', "compact": b'{"a":[1,2],"b":{}}',
             "indented": json.dumps({"a": [1, 2], "b": {"c": None}}, indent=4).encode(), "loose": b'{"a" : [ 1 ,2 ] }'}
    taken = {ws: {k for k, t in texts.items() if Schema(vocab, schema, ws).matches(t)}
             for ws in (SPACED, COMPACT, FLEXIBLE)}
    assert taken == {SPACED: {"spaced"}, COMPACT: {"compact"}, FLEXIBLE: set(texts)}
    assert not Schema(vocab, schema, FLEXIBLE).matches(b'{"a": ' + b" " * 100 + b"1}")


def keyword_of(text):
    return text.split("'")[1] if "keyword '" in text else text[:40]


@pytest.mark.parametrize("draft", ["draft2020-12", "draft7"])
def test_the_official_suite(vocab, draft):
    if not SUITE.exists():
        pytest.skip(f"no {SUITE}: the shared data folder is not here")
    agreed, refused, left_out = collections.Counter(), collections.Counter(), collections.Counter()
    wrong, planted = [], 0
    for name, group in suite(draft):
        if name in NOT_COMPARED:
            continue
        try:
            grammar = Schema(vocab, group["schema"])
        except Refused as e:
            if "no value can satisfy" in e.text:
                wrong += [(name, t["description"]) for t in group["tests"] if t["valid"]]
                agreed[name] += len(group["tests"])
            else:
                refused[name, keyword_of(e.text)] += len(group["tests"])
            continue
        for test in group["tests"]:
            accepted = grammar.accepts(test["data"])
            if accepted == test["valid"]:
                agreed[name] += 1
            elif not accepted and name in LEFT_OUT and LEFT_OUT[name][1](test["data"]):
                left_out[name, LEFT_OUT[name][0]] += 1
            else:
                wrong.append((name, group["description"], test["description"], json.dumps(test["data"])[:60]))
            planted += accepted == (not test["valid"])
    for name, n in sorted(agreed.items()):
        off = {k: n for (f, k), n in refused.items() if f == name}
        print(f"| {name} | {n} | {', '.join(f'{k} {v}' for k, v in off.items())} |")
    print({k: v for k, v in refused.items() if k[0] not in agreed})
    print("agreed", sum(agreed.values()), "refused", sum(refused.values()), "left out", dict(left_out))
    assert wrong == []
    assert sum(agreed.values()) > {"draft2020-12": 1500, "draft7": 1300}[draft]
    assert planted < sum(agreed.values()) / 20  # the opposite of every answer would not pass


def test_orders_tries_every_order():
    assert len(orders({"a": 1, "b": {"c": 1, "d": 2}})) == 4
    assert len(orders([{"a": 1, "b": 2}, {"c": 1, "d": 2}])) == 4
