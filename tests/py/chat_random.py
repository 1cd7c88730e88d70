"""Seeded random templates: expressions from a small grammar, and statements around them. One seed, one template."""

import random

VALUES = {
    "s": "Hello World",
    "t": "  padded\tText\n",
    "u": "Grüße 世界 Straße ΑΣ",
    "e": "",
    "n": 7,
    "z": 0,
    "m": -3,
    "f": 2.5,
    "g": -0.125,
    "yes": True,
    "no": False,
    "nil": None,
    "words": ["b", "a", "C", "a"],
    "nums": [3, 1, 2, 1],
    "mix": [1, "x", None, 2.0, True],
    "d": {"a": 1, "b": [1, 2], "items": "shadow", "C": {"x": "deep"}},
    "rows": [
        {"name": "ann", "age": 3, "ok": True, "tag": {"k": "v1"}},
        {"name": "Bob", "age": 1, "tag": {"k": "v0"}},
        {"name": "cy", "age": 2, "ok": False},
    ],
    "empty": [],
    "none_d": {},
    "pairs": [["k", 1], ["l", 2]],
    "text": "line one\nline two\n\nlast 'q' \"dq\" <b>&</b>",
}
STRINGS = [
    "''",
    "'a'",
    "'World'",
    "' '",
    "'l'",
    "'o W'",
    "'ß'",
    "'%s'",
    "'x\\ny'",
    '"it\'s"',
    "'{}'",
    "'a,b,,c'",
    "'-'",
]
NUMBERS = ["0", "1", "2", "-1", "3", "7", "10", "1.5", "0.1", "-2.5", "1e3", "100"]
NAMES = list(VALUES) + ["missing"]
STR_METHODS = [
    "upper()",
    "lower()",
    "strip()",
    "lstrip()",
    "rstrip('\\n')",
    "title()",
    "capitalize()",
    "split()",
    "split(' ')",
    "split('l', 1)",
    "rsplit('l', 1)",
    "rsplit()",
    "splitlines()",
    "replace('l', 'LL')",
    "replace('o', '', 1)",
    "find('o')",
    "rfind('o')",
    "count('l')",
    "startswith('H')",
    "endswith(('d', 'x'))",
    "isdigit()",
    "isalpha()",
    "isupper()",
    "join(['a', 'b'])",
    "join('xyz')",
    "partition(' ')",
    "rpartition(' ')",
    "zfill(14)",
    "center(20)",
    "ljust(14, '*')",
    "rjust(3)",
    "removeprefix('He')",
    "removesuffix('ld')",
    "swapcase()",
    "format(1, a=2)",
    "index('l')",
    "casefold()",
    "islower()",
    "istitle()",
    "isspace()",
    "strip('Hd')",
    "split(none, 1)",
    "find('l', 4)",
    "startswith('W', 6)",
]
DICT_METHODS = [
    "get('a')",
    "get('zz')",
    "get('zz', 5)",
    "keys()",
    "values()",
    "items()",
    "items()|list",
    "copy()",
    "update({})",
    "pop('a')",
    "keys()|list|length",
]
LIST_METHODS = ["index(1)", "count('a')", "append(1)", "copy()", "pop()"]
FILTERS = [
    "upper",
    "lower",
    "title",
    "capitalize",
    "trim",
    "length",
    "first",
    "last",
    "list",
    "string",
    "int",
    "float",
    "abs",
    "sort",
    "unique|list",
    "reverse|list",
    "join",
    "join(',')",
    "join('-', attribute='name')",
    "default('D')",
    "default('D', true)",
    "d",
    "tojson",
    "tojson(indent=2)",
    "tojson(sort_keys=true)",
    "tojson(ensure_ascii=true)",
    "tojson(separators=(',', ':'))",
    "replace('l', 'r')",
    "replace('a', 'b', 1)",
    "wordcount",
    "urlencode",
    "indent",
    "indent(2, true)",
    "indent('> ', blank=true)",
    "truncate(8)",
    "truncate(9, true, '!')",
    "truncate(5, false, '', 0)",
    "round",
    "round(1)",
    "round(0, 'floor')",
    "round(1, 'ceil')",
    "min",
    "max",
    "sum",
    "items|list",
    "dictsort",
    "dictsort(reverse=true)",
    "dictsort(by='value')",
    "map('upper')|list",
    "map(attribute='name')|list",
    "map(attribute='age', default=9)|list",
    "map(attribute='tag.k')|join(' ')",
    "select|list",
    "reject|list",
    "select('string')|list",
    "select('odd')|list",
    "select('gt', 1)|list",
    "selectattr('ok')|list",
    "selectattr('age', 'ge', 2)|map(attribute='name')|list",
    "rejectattr('ok')|list",
    "selectattr('ok', 'defined')|list|length",
    "sort(attribute='name')|map(attribute='name')|join",
    "sort(reverse=true)",
    "sort(attribute='age,name')|length",
    "groupby('ok')|list",
    "batch(2)|list",
    "batch(2, 0)|list",
    "slice(2)|list",
    "slice(3, 'f')|list",
    "format(1)",
    "format('x', 2)",
    "center(15)",
    "filesizeformat",
    "count",
    "map('default', 'q')|list",
    "map('int')|list",
    "map('first')|list",
    "sum(attribute='age')",
    "sum(start=5)",
    "unique|first",
    "max(attribute='age')",
    "random_filter",
    "reverse|join",
    "int(5)",
    "int('x', 16)",
    "float(1.5)",
    "map('length')|list",
    "tojson|length",
    "first|upper",
    "last|string",
]
TESTS = [
    "defined",
    "undefined",
    "none",
    "string",
    "number",
    "integer",
    "float",
    "boolean",
    "mapping",
    "iterable",
    "sequence",
    "true",
    "false",
    "odd",
    "even",
    "lower",
    "upper",
    "callable",
    "divisibleby(2)",
    "divisibleby 3",
    "eq(1)",
    "equalto 'a'",
    "ne 1",
    "gt(1)",
    "lt 2",
    "ge(0)",
    "in [1, 'a']",
    "in 'Hello'",
    "sameas true",
    "sameas none",
    "filter",
    "test",
    "escaped",
]
SLICES = [
    "[0]",
    "[-1]",
    "[1:]",
    "[:2]",
    "[::-1]",
    "[1:5:2]",
    "[-3:]",
    "[:-1]",
    "['a']",
    "['name']",
    ".a",
    ".name",
    "[9]",
    "['C'].x",
    "[:100]",
    "[5:1]",
    "[::2]",
    "[3::-1]",
    ".items",
    "['items']",
    ".0",
    "[0].name",
    "[-2:-1]",
]


PERCENTS = ["d", "5.2f", "s", "r", "x", "-6s|", "05d", "+d", "e", "g", "c", "%"]
BRACES = ["", "0", "!r", ":>8", ":<6", ":^7", ":05d", ":.2f", ":,", "a", ":x", ":e", ":%", ":+", ":*^9"]
ITERABLES = ["nums", "words", "rows", "s", "d", "range(3)", "empty", "missing", "d.items()", "mix", "pairs"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def atom(self):
        return self.pick(
            [
                lambda: self.pick(NAMES),
                lambda: self.pick(NAMES),
                lambda: self.pick(STRINGS),
                lambda: self.pick(NUMBERS),
                lambda: self.pick(
                    [
                        "true",
                        "false",
                        "none",
                        "[]",
                        "{}",
                        "()",
                        "[1, 'a', none]",
                        "(1, 2)",
                        "{'k': 1, 2: 'v'}",
                        "range(4)",
                        "range(5, 0, -2)",
                        "[[1, 2], [3]]",
                    ]
                ),
            ]
        )()

    def expr(self, depth=3):
        if depth <= 0:
            return self.atom()
        e = self.expr
        d = depth - 1
        return self.pick(
            [
                self.atom,
                self.atom,
                lambda: f"{e(d)} {self.pick(['+', '-', '*', '/', '//', '%', '~', '~', '+', '**'])} {e(d)}",
                lambda: f"({e(d)} {self.pick(['+', '~', '*', 'and', 'or'])} {e(d)})",
                lambda: f"{e(d)} {self.pick(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e(d)}",
                lambda: f"{e(d)} {self.pick(['and', 'or'])} {e(d)}",
                lambda: f"not {e(d)}",
                lambda: f"-{self.atom()}",
                lambda: f"({e(d)})|{self.pick(FILTERS)}",
                lambda: f"{self.atom()}|{self.pick(FILTERS)}",
                lambda: f"{self.pick(NAMES)}|{self.pick(FILTERS)}|{self.pick(FILTERS)}",
                lambda: f"{self.pick(NAMES)}|{self.pick(FILTERS)}",
                lambda: f"{e(d)} is {self.pick(['', 'not '])}{self.pick(TESTS)}",
                lambda: f"{self.pick(NAMES)}{self.pick(SLICES)}",
                lambda: f"{self.pick(['s', 't', 'u', 'text', 'e'])}.{self.pick(STR_METHODS)}",
                lambda: f"d.{self.pick(DICT_METHODS)}",
                lambda: f"{self.pick(['nums', 'words', 'mix'])}.{self.pick(LIST_METHODS)}",
                lambda: f"({e(d)} if {e(d)} else {e(d)})",
                lambda: f"({e(d)} if {e(d)})",
                lambda: f"[{e(d)}, {e(d)}]",
                lambda: f"{{'k': {e(d)}, {self.pick(STRINGS)}: {e(d)}}}",
                lambda: f"'%s-%s' % ({e(d)}, {e(d)})",
                lambda: f"'%{self.pick(PERCENTS)}' % {self.atom()}",
                lambda: f"'{{{self.pick(BRACES)}}}'.format({self.atom()}, a={self.atom()})",
                lambda: f"{e(d)} < {e(d)} <= {e(d)}",
            ]
        )()

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.r.randint(1, 3)))

    def statement(self, depth=2):
        r, x = self.r, lambda: self.expr(1)
        dash = lambda: self.pick(["", "", "-", "+"])
        tag = lambda text: "{%" + dash() + " " + text + " " + dash() + "%}"
        if depth <= 0:
            return self.pick(
                [lambda: "{{ " + x() + " }}", lambda: "text ", lambda: "\n  ", lambda: "{{- " + x() + " -}} "]
            )()
        b = lambda: self.body(depth - 1)
        return self.pick(
            [
                lambda: "{{ " + x() + " }}",
                lambda: " plain\n ",
                lambda: "{# note #}\n",
                lambda: "{{" + dash().replace("+", "") + " " + x() + " }}",
                lambda: tag("if " + x()) + b() + tag("elif " + x()) + b() + tag("else") + b() + tag("endif"),
                lambda: tag("if " + x()) + b() + tag("endif"),
                lambda: tag(f"for i in {self.pick(ITERABLES)}")
                + self.pick(
                    [
                        "{{ i }}",
                        "{{ loop.index }}/{{ loop.length }} ",
                        "{{ loop.first }}{{ loop.last }}",
                        "{{ loop.previtem }}|{{ loop.nextitem }}",
                        "{{ loop.cycle('a', 'b') }}",
                        "{{ loop.changed(i) }}",
                        "{{ loop.revindex0 }}",
                        "{% if loop.index > 1 %}{% break %}{% endif %}x",
                        "{% if loop.first %}{% continue %}{% endif %}y",
                        "",
                    ]
                )
                + b()
                + tag("else")
                + "none"
                + tag("endfor"),
                lambda: tag(f"for k, v in {self.pick(['d.items()', 'd|dictsort', 'pairs', 'd|items', 'rows'])}")
                + "{{ k }}={{ v }};"
                + tag("endfor"),
                lambda: tag(f"for i in nums if i {self.pick(['> 1', 'is odd', '!= 2'])}")
                + "{{ loop.index }}{{ i }}{{ loop.last }}"
                + tag("endfor"),
                lambda: tag("set v = " + x()) + "{{ v }}",
                lambda: tag("set v") + b() + tag("endset") + "[{{ v }}]",
                lambda: tag("set v | upper") + b() + tag("endset") + "[{{ v }}]",
                lambda: tag("set ns = namespace(a=1, b='')")
                + tag("for i in nums")
                + tag("set ns.a = ns.a + i")
                + tag("set ns.b = ns.b ~ i")
                + tag("endfor")
                + "{{ ns.a }}{{ ns.b }}",
                lambda: tag("macro mac(p, q=" + self.atom() + ")")
                + "<{{ p }}|{{ q }}>"
                + b()
                + tag("endmacro")
                + self.pick(
                    [
                        "{{ mac(1) }}",
                        "{{ mac(q=2) }}",
                        "{{ mac(1, 2) }}",
                        "{{ mac('x', q='y')|upper }}",
                        "{{ mac(1, 2, 3) }}",
                        "{{ mac() }}",
                    ]
                ),
                lambda: tag("macro outer(p)")
                + "({{ p }}{{ caller() }})"
                + tag("endmacro")
                + tag("call outer(" + self.atom() + ")")
                + b()
                + tag("endcall"),
                lambda: tag("filter " + self.pick(["upper", "trim", "replace('a', 'b')", "indent(2)", "length"]))
                + b()
                + tag("endfilter"),
                lambda: tag("with w = " + x()) + "{{ w }}" + b() + tag("endwith"),
                lambda: tag("raw") + " {{ raw }} {% x %} " + tag("endraw"),
                lambda: tag("generation") + b() + tag("endgeneration"),
                lambda: tag("set a, b = (1, 2)") + "{{ a }}{{ b }}",
                lambda: tag("set x1") + "{{ i }}" + tag("endset"),
            ]
        )()


def template(seed):
    m = Maker(seed)
    if seed % 2:
        return "{{ " + m.expr(3) + " }}"
    return m.body(2) + m.pick(["", "\n", "\n\n", " "])
