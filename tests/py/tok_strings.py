"""Seeded test strings for tokenizers. `strings(seed, n, specials)` always gives the same list for the same arguments.

Each kind of text that a pre-split pattern, a normaliser or a merge could treat differently has one maker below, and
WEIGHTS says how often it is drawn. `EDGES` come first in every list. `sweep()` walks every code point of Unicode in
contexts that make its category visible. `python tests/py/tok_strings.py SEED N` prints a list, one repr per line."""

import random
import sys
import unicodedata

from tok_prose import CODE, PROSE

# Blocks with code points assigned after Unicode 14, so that tables of different age show. First and last of each.
NEWER = [
    (0x0897, 0x0897),
    (0x088F, 0x088F),
    (0x0C5C, 0x0C5C),
    (0x0CDC, 0x0CDC),
    (0x0CF3, 0x0CF3),
    (0x0ECE, 0x0ECE),
    (0x1ACF, 0x1AEB),
    (0x1B4E, 0x1B4F),
    (0x1B7F, 0x1B7F),
    (0x1C89, 0x1C8A),
    (0x20C1, 0x20C1),
    (0x2427, 0x2429),
    (0x2B96, 0x2B96),
    (0x2FFC, 0x2FFF),
    (0x31E4, 0x31E5),
    (0x31EF, 0x31EF),
    (0xA7CB, 0xA7DC),
    (0xA7F1, 0xA7F1),
    (0x105C0, 0x105F3),
    (0x10940, 0x10959),
    (0x10D40, 0x10D8F),
    (0x10EC2, 0x10EFF),
    (0x1123F, 0x11241),
    (0x11380, 0x113E2),
    (0x116D0, 0x116E3),
    (0x11B00, 0x11B09),
    (0x11BC0, 0x11BF9),
    (0x11DB0, 0x11DE9),
    (0x11F00, 0x11F5A),
    (0x1342F, 0x13455),
    (0x13460, 0x143FA),
    (0x16100, 0x16139),
    (0x16D40, 0x16D79),
    (0x16EA0, 0x16ED3),
    (0x18CFF, 0x18D1E),
    (0x1B132, 0x1B155),
    (0x1CC00, 0x1CEB3),
    (0x1D2C0, 0x1D2D3),
    (0x1DF25, 0x1DF2A),
    (0x1E030, 0x1E08F),
    (0x1E4D0, 0x1E4F9),
    (0x1E5D0, 0x1E5FF),
    (0x1E6C0, 0x1E6FF),
    (0x1F6DC, 0x1F6DC),
    (0x1F774, 0x1F77F),
    (0x1F8B2, 0x1F8C1),
    (0x1FA75, 0x1FA8F),
    (0x1FAAD, 0x1FAFF),
    (0x1FBCB, 0x1FBFA),
    (0x2B73A, 0x2B73F),
    (0x2CEA2, 0x2CEAD),
    (0x2EBF0, 0x2EE5D),
    (0x31350, 0x33479),
]

SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2000",
    "\u2009",
    "\u200a",
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
    "\u200b",
    "\u180e",
    "\ufeff",
]

EDGES = [
    "",
    " ",
    "  ",
    "   ",
    "    ",
    "\n",
    "\n\n",
    " \n",
    "\n ",
    "\r\n",
    "\t",
    "\t\t",
    "a",
    "A",
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "123456",
    "1234567",
    " a",
    "a ",
    " a ",
    "  a",
    "a  ",
    "  a  ",
    "a b",
    "a  b",
    "a   b",
    "a\nb",
    "a \n b",
    "a\n\n b",
    "a \n\n\n  b",
    "'s",
    "'S",
    "it's",
    "IT'S",
    "'re've'll'd'm't",
    "'ll",
    "'LL",
    "x'llx",
    " 's",
    "'ſ",
    "Kelvin K",
    "ﬁne",
    "İi",
    "ß",
    "ẞ",
    "ΑΣ Σ",
    "!",
    "!!",
    "!!!",
    " !",
    "! ",
    "!a",
    "a!",
    "!\n",
    "!\r\n\r\n",
    "...\n\n",
    "://",
    "/\n/",
    "=====",
    "-----",
    "_",
    "__",
    "_a_",
    "a_b",
    "▁",
    "▁a",
    "a▁b",
    " ▁ ",
    "▁▁▁",
    "<0x41>",
    "<0x0A>",
    "<unk>",
    "<s>",
    "</s>",
    "<|endoftext|>",
    "<|im_start|>user\nhi<|im_end|>",
    "[INST] hi [/INST]",
    "##ing",
    "</w>",
    "Ġ",
    "Ċ",
    "ĠĠ",
    "Ġa Ċ b",
    "\x00",
    "a\x00b",
    "\x7f",
    "\x80",
    "\u00ad",
    "\u200d",
    "\ufe0f",
    "\ufeff",
    "\ufffd",
    "\ufffe",
    "\uffff",
    "\U0010ffff",
    "\ue000",
    "\U000f0000",
    "e\u0301",
    "é",
    "\u0301",
    " \u0301",
    "\u1100\u1161\u11a8",
    "각",
    "Å Å Å",
    "①②③",
    "½",
    "²³",
    "Ⅷ",
    "٣",
    "１２３",
    "ｈｅｌｌｏ　ｗｏｒｌｄ",
    "\u2126",
    "\u212b",
    "ΐ",
    "ﷺ",
    "👍",
    "👍🏽",
    "👨‍👩‍👧‍👦",
    "🇬🇧🇩🇪",
    "1️⃣",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "a👍b",
    " 👍 ",
    "👍👍👍",
    "HTTPServer",
    "camelCaseText",
    "XMLHttpRequest2",
    "iPhone15Pro",
    "A1b2C3",
    "ABCdef",
    "ÀÉîöÜ",
    "ǅungla",
    "ʰello",
    "ªº",
    "你好",
    "你好 世界",
    "你好，世界。",
    "日本語テキスト",
    "한국어",
    "ไทย",
    "हिन्दी",
    "العربية",
    "don’t",
    "l’eau",
    "rock'n'roll",
    "O'Neil's",
    "3.14",
    "1e10",
    "-5",
    "+5",
    "1,000,000",
    "0x1F",
    "100%",
    "$5",
    "5€",
    "a\u3000b",
    "\u3000\u3000a",
    "a\xa0b",
    "a\u2028b",
    "\t \t a",
]


def chars_by_category():
    table = {}
    for cp in range(0x110000):
        if 0xD800 <= cp <= 0xDFFF:
            continue
        table.setdefault(unicodedata.category(chr(cp)), []).append(cp)
    return table


CATEGORIES = chars_by_category()
CATEGORY_NAMES = sorted(CATEGORIES)
EMOJI_BASE = [
    cp
    for a, b in [(0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6DC), (0x1F900, 0x1FAFF)]
    for cp in range(a, b + 1)
] + list(range(0x2600, 0x27C0))
PROSE_LINES = [(name, line) for name, lines in PROSE.items() for line in lines]
CODE_LINES = {name: text.split("\n") for name, text in CODE.items()}
WORDS = {name: " ".join(lines).split(" ") for name, lines in PROSE.items()}
LATIN = "abcdefghijklmnopqrstuvwxyz"


def scalar(r):
    """A random scalar value, spread over planes and over lengths in UTF-8."""
    while True:
        width = r.randrange(6)
        cp = [
            r.randrange(0x80),
            r.randrange(0x80, 0x800),
            r.randrange(0x800, 0x10000),
            r.randrange(0x10000, 0x20000),
            r.randrange(0x10000, 0x110000),
            r.randrange(0x2000, 0x3200),
        ][width]
        if not 0xD800 <= cp <= 0xDFFF:
            return chr(cp)


def newer(r):
    first, last = r.choice(NEWER)
    return chr(r.randint(first, last))


def prose(r, _):
    name, line = r.choice(PROSE_LINES)
    if r.random() < 0.5:  # any cut, also inside words and between base and mark
        a = r.randrange(len(line))
        return line[a : a + r.randint(1, 90)]
    words = [r.choice(WORDS[name]) for _ in range(r.randint(1, 12))]
    text = r.choice([" ", " ", " ", "", "  ", "\n", ", "]).join(words)
    return r.choice([str, str, str, str.upper, str.lower, str.title, str.swapcase])(text)


def code(r, _):
    lines = CODE_LINES[r.choice(list(CODE_LINES))]
    a = r.randrange(len(lines))
    text = r.choice(["\n", "\n", "\r\n", "\n\n"]).join(lines[a : a + r.randint(1, 4)])
    if r.random() < 0.3:
        text = text.replace("\t", " " * r.choice([2, 4, 8]))
    if r.random() < 0.3:
        text = text.replace("mill", r.choice(["x", "camelCaseName", "SNAKE_CASE_2", "données", "变量"]))
    return text[r.randrange(4) :]


def emoji(r, _):
    out = []
    for _ in range(r.randint(1, 6)):
        unit = chr(r.choice(EMOJI_BASE))
        kind = r.randrange(6)
        if kind == 0:
            unit += chr(r.randint(0x1F3FB, 0x1F3FF))
        elif kind == 1:
            unit = "\u200d".join(chr(r.choice(EMOJI_BASE)) for _ in range(r.randint(2, 4)))
        elif kind == 2:
            unit = chr(r.randint(0x1F1E6, 0x1F1FF)) + chr(r.randint(0x1F1E6, 0x1F1FF))
        elif kind == 3:
            unit += "\ufe0f"
        elif kind == 4:
            unit = r.choice("0123456789#*") + "\ufe0f\u20e3"
        out.append(unit)
    return r.choice(["", "", " ", "a", "\n"]).join(out)


def combining(r, _):
    marks = CATEGORIES["Mn"] + CATEGORIES["Mc"] + CATEGORIES["Me"]
    out = []
    for _ in range(r.randint(1, 8)):
        out.append(r.choice([r.choice(LATIN), r.choice("אבגकखกΑЖあ가  1"), scalar(r)]))
        out.extend(chr(r.choice(marks)) for _ in range(r.choice([0, 1, 1, 2, 3, 6])))
    text = "".join(out)
    form = r.choice([None, None, "NFC", "NFD", "NFKC", "NFKD"])
    return unicodedata.normalize(form, text) if form else text


def category(r, _):
    name = r.choice(CATEGORY_NAMES)
    pick = lambda: newer(r) if r.random() < 0.1 else chr(r.choice(CATEGORIES[name]))  # noqa: E731
    other = chr(r.choice(CATEGORIES[r.choice(CATEGORY_NAMES)]))
    shape = r.randrange(8)
    if shape == 0:
        return "".join(pick() for _ in range(r.randint(1, 12)))
    if shape == 1:
        return f"a{pick()}b {pick()}c {pick()}{pick()}"
    if shape == 2:
        return f"1{pick()}2 {pick()} 3"
    if shape == 3:
        return f"!{pick()}? {pick()}{other}"
    if shape == 4:
        return f"{pick()}\n{pick()}\n\n{pick()} "
    if shape == 5:
        return f"'{pick()} A{pick()}'s{other}"
    if shape == 6:
        return f"  {pick()}{other}{pick()}  {other}"
    return f"Ab{pick()}Cd{pick()}{pick()}ef{other}GH"


def numbers(r, _):
    n = "".join(r.choice("0123456789") for _ in range(r.randint(1, 24)))
    shape = r.randrange(9)
    if shape == 0:
        return n
    if shape == 1:
        return f"{int(n):,}"
    if shape == 2:
        return f"{n[:3]}.{n[3:]}e{r.choice('+-')}{r.randrange(400)}"
    if shape == 3:
        return f"{r.randrange(1900, 2100)}-{r.randrange(13):02}-{r.randrange(32):02}T{r.randrange(24):02}:30Z"
    if shape == 4:
        return "".join(chr(r.choice(CATEGORIES[c])) for c in r.choices(["Nd", "Nl", "No"], k=r.randint(1, 10)))
    if shape == 5:
        return f"x{n}y {n[:2]}kg {n[:1]}st -{n[:4]} +{n[:3]}%"
    if shape == 6:
        return n.translate({ord(str(d)): 0x0660 + d for d in range(10)})
    if shape == 7:
        return ".".join(str(r.randrange(256)) for _ in range(4)) + f":{r.randrange(65536)}"
    return f"{hex(int(n))} 0b{int(n[:4]):b} {n}L"


def whitespace(r, _):
    out = []
    for _ in range(r.randint(1, 6)):
        out.append("".join(r.choice(SPACES) for _ in range(r.choice([1, 1, 2, 3, 8]))))
        out.append(r.choice(["", "a", "word", "9", "!", ".", "你", "\u0301", "_", "▁", "'s"]))
    return "".join(out)


def control(r, _):
    pool = CATEGORIES["Cc"] + CATEGORIES["Cf"]
    return "".join(
        r.choice([chr(r.choice(pool)), chr(r.choice(pool)), "a", " ", "\n", "1"]) for _ in range(r.randint(1, 12))
    )


def long_word(r, _):
    n = r.choice([40, 80, 200, 400, 1000])
    shape = r.randrange(6)
    if shape == 0:
        return r.choice(LATIN + "A1 \n=-_.é你") * n
    if shape == 1:
        return "".join(r.choice(LATIN) for _ in range(n))
    if shape == 2:
        return (r.choice(["ab", "abc", "na", " a", "0 ", "\n ", "!?", "你好", "é́"]) * n)[:n]
    if shape == 3:
        return "".join(r.choice("ACGT") for _ in range(n))
    if shape == 4:
        return "".join(r.choice("0123456789abcdef") for _ in range(n))
    return "".join(w.strip(".,") for w in r.choices(WORDS[r.choice(list(WORDS))], k=n // 8))


def random_utf8(r, _):
    return "".join(newer(r) if r.random() < 0.15 else scalar(r) for _ in range(r.randint(1, 24)))


def special(r, specials):
    if not specials:
        return prose(r, specials)
    out = []
    for _ in range(r.randint(1, 5)):
        s = r.choice(specials)
        shape = r.randrange(9)
        if shape == 0:
            s = s[:-1]
        elif shape == 1:
            s = s[1:]
        elif shape == 2:
            s = s[: len(s) // 2] + r.choice(" x\u0301") + s[len(s) // 2 :]
        elif shape == 3:
            s = r.choice([str.upper, str.lower, str.title])(s)
        elif shape == 4:
            s = s + s
        out.append(r.choice(["", "", " ", "  ", "\n", "a", "1", "\t"]) + s)
        if r.random() < 0.5:
            out.append(r.choice(["", " ", "word", " word ", "\n", "  ", "é", "你好", "!", "\u0301", "s"]))
    return "".join(out)


def contraction(r, _):
    quote = r.choice("''''’`ʼ＇")
    tail = r.choice(
        ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "M", "lL", "D", "ſ", "x", "sa", "", "1"]
    )
    return (
        r.choice(["", " ", "x", "It", "WE", "1", "!", "\n", "é"])
        + quote
        + tail
        + r.choice(["", " ", "x", "\n", "!", "'s"])
    )


def mixed(r, specials):
    makers = [prose, code, emoji, combining, category, numbers, whitespace, control, random_utf8, contraction]
    return r.choice(["", " ", "\n"]).join(r.choice(makers)(r, specials)[:30] for _ in range(r.randint(2, 4)))


WEIGHTS = [
    (prose, 24),
    (code, 14),
    (emoji, 5),
    (combining, 6),
    (category, 14),
    (numbers, 6),
    (whitespace, 7),
    (control, 3),
    (long_word, 1),
    (random_utf8, 6),
    (special, 8),
    (contraction, 2),
    (mixed, 4),
]


def strings(seed, n, specials=()):
    """n strings: EDGES, then each special token alone, then draws by WEIGHTS. No surrogates, so all are valid UTF-8."""
    r = random.Random(f"quern-{seed}")
    specials = list(specials)[:400]
    out = (EDGES + specials)[:n]
    makers = [m for m, w in WEIGHTS for _ in range(w)]
    while len(out) < n:
        out.append(r.choice(makers)(r, specials))
    return out


def sweep(step=1, per_string=32):
    """Every step-th scalar value between letters, digits, marks and spaces: one string holds per_string of them."""
    shapes = ["a{0}b", " {0}", "1{0}", "!{0}", "{0}{0} ", "A{0}a", "{0}\n"]
    points = [cp for cp in range(0, 0x110000, step) if not 0xD800 <= cp <= 0xDFFF]
    # Beyond plane 3 only tags, selectors and private use exist: a thinned walk sees them all.
    points = [cp for cp in points if cp < 0x34000 or 0xE0000 <= cp < 0xE0200 or cp % 509 == 0]
    out = []
    for i in range(0, len(points), per_string):
        out.append(
            "".join(
                shapes[(i // per_string + k) % len(shapes)].format(chr(cp))
                for k, cp in enumerate(points[i : i + per_string])
            )
        )
    return out


def bad_bytes(seed, n):
    """Byte strings that are not valid UTF-8: cut characters, stray continuation bytes, overlong forms, surrogates."""
    r = random.Random(f"quern-bad-{seed}")
    junk = [
        b"\x80",
        b"\xbf\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\xfe",
        b"\xff",
        b"\xe4\xbd",
        b"\xf0\x9f\x91",
        b"\xf0\x9f",
        b"\xf0",
        b"\xc3",
        b"\xe2\x96",
    ]
    out = []
    while len(out) < n:
        parts = []
        for _ in range(r.randint(1, 5)):
            parts.append(r.choice(junk))
            parts.append(r.choice([prose, emoji, whitespace])(r, [])[: r.randint(0, 12)].encode())
        r.shuffle(parts)
        text = b"".join(parts)
        try:
            text.decode()
        except UnicodeDecodeError:
            out.append(text)
    return out


if __name__ == "__main__":
    for text in strings(
        sys.argv[1] if len(sys.argv) > 1 else "1", int(sys.argv[2]) if len(sys.argv) > 2 else 50, ["<s>"]
    ):
        print(repr(text))
