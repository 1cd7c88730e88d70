"""Random schemas against random values: quern and `jsonschema` must agree on every pair. Schemas are small and mix
everything that is supported, since mistakes live where keywords meet. QUERN_SCHEMAS sets how many are tried (300)."""

import os
import random

import jsonschema

from grammar_schema import Refused, Schema, byte_vocab

SCHEMAS = int(os.environ.get("QUERN_SCHEMAS", "300"))
NAMES = ["a", "b", "c"]
SCALARS = [None, True, False, 0, 1, -1, 2, 3.5, -0.5, 10, 1e6, "", "a", "ab", "b", "ba", "é"]
DEFS = {"n": {"type": ["integer", "null"]}, "o": {"properties": {"a": {"$ref": "#/$defs/o"}, "b": {"type": "string"}}}}


def value(rng, depth=0):
    kind = rng.random()
    if depth < 2 and kind < 0.2:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 2 and kind < 0.5:
        return {name: value(rng, depth + 1) for name in rng.sample(NAMES + ["d"], rng.randrange(4))}
    return rng.choice(SCALARS)


def keyword(rng, depth):
    """One keyword with its value."""
    sub = lambda: schema(rng, depth + 1)  # noqa: E731
    subs = lambda n: [sub() for _ in range(rng.randint(1, n))]  # noqa: E731
    names = lambda n: rng.sample(NAMES, rng.randint(1, n))  # noqa: E731
    number = lambda: rng.choice([-1, 0, 1, 2, 3.5, -0.5])  # noqa: E731
    types = ["null", "boolean", "integer", "number", "string", "array", "object"]
    plain = {
        "type": lambda: rng.choice([rng.choice(types), rng.sample(types, 2)]),
        "enum": lambda: [value(rng, 1) for _ in range(rng.randint(1, 4))],
        "const": lambda: value(rng, 1),
        "minimum": number,
        "maximum": number,
        "exclusiveMinimum": number,
        "exclusiveMaximum": number,
        "multipleOf": lambda: rng.choice([1, 2, 3, 0.5]),
        "minLength": lambda: rng.randint(0, 2),
        "maxLength": lambda: rng.randint(0, 2),
        "pattern": lambda: rng.choice(["a", "^a", "b$", "^[ab]*$", "^$"]),
        "minItems": lambda: rng.randint(0, 2),
        "maxItems": lambda: rng.randint(0, 3),
        "minProperties": lambda: rng.randint(0, 2),
        "maxProperties": lambda: rng.randint(0, 3),
        "required": lambda: names(2),
        "dependentRequired": lambda: {rng.choice(NAMES): names(2)},
        "$ref": lambda: "#/$defs/" + rng.choice(list(DEFS)),
    }
    nested = {
        "properties": lambda: {name: sub() for name in names(3)},
        "patternProperties": lambda: {rng.choice(["^a", "b", "[cd]"]): sub()},
        "additionalProperties": sub,
        "propertyNames": lambda: rng.choice([{"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "[abc]"}]),
        "items": sub,
        "prefixItems": lambda: subs(2),
        "contains": sub,
        "allOf": lambda: subs(2),
        "anyOf": lambda: subs(3),
        "oneOf": lambda: subs(2),
        "not": sub,
        "if": sub,
        "then": sub,
        "else": sub,
        "dependentSchemas": lambda: {rng.choice(NAMES): sub()},
        "unevaluatedProperties": sub,
        "unevaluatedItems": sub,
    }
    table = plain if depth >= 2 else {**plain, **nested}
    name = rng.choice(list(table))
    return name, table[name]()


def schema(rng, depth=0):
    if depth > 0 and rng.random() < 0.1:
        return rng.random() < 0.7
    return dict(keyword(rng, depth) for _ in range(rng.randint(1, 3 if depth < 2 else 1)))


def compare(vocab, seed):
    """How many values agreed; 0 when the schema was refused."""
    rng = random.Random(seed)
    s = {**schema(rng), "$defs": DEFS}
    judge = jsonschema.Draft202012Validator(s)
    values = SCALARS + [value(rng) for _ in range(40)]
    try:
        grammar = Schema(vocab, s)
    except Refused as e:
        if "no value can satisfy" in e.text:
            assert [v for v in values if judge.is_valid(v)] == [], (seed, s)
            return len(values)
        assert e.code in ("UNSUPPORTED", "LIMIT"), (seed, s, str(e))
        return 0
    wrong = [(v, judge.is_valid(v)) for v in values if grammar.accepts(v) != judge.is_valid(v)]
    assert wrong == [], (seed, s, wrong[:3])
    return len(values)


def test_random_schemas_agree():
    vocab = byte_vocab()
    agreed = [compare(vocab, seed) for seed in range(SCHEMAS)]
    print(f"{sum(n > 0 for n in agreed)} of {SCHEMAS} schemas compiled, {sum(agreed)} values agreed")
    assert sum(n > 0 for n in agreed) > SCHEMAS * 0.7


def test_a_planted_error_is_seen():
    """The same values under a schema with one keyword more do not all agree."""
    vocab, differ = byte_vocab(), 0
    for seed in range(20):
        rng = random.Random(seed)
        s = schema(rng)
        judge = jsonschema.Draft202012Validator({"allOf": [{**s, "$defs": DEFS}, {"type": "string"}], "$defs": DEFS})
        try:
            grammar = Schema(vocab, {**s, "$defs": DEFS})
        except Refused:
            continue
        differ += any(grammar.accepts(v) != judge.is_valid(v) for v in SCALARS)
    assert differ > 5
