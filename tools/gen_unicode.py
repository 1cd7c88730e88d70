#!/usr/bin/env python3
"""Write src/text/unicode_new.h: what the `tokenizers` package knows about characters and our libraries do not.

Every component of that package has character tables of its own, of different ages; each is probed by running it on
every character. Two kinds of result:

unicode_new: for the pre-split patterns. PCRE2 10.42 knows Unicode 14, the package's regex engine a later version. For
every character whose general category (or membership in a script that patterns ask for) differs, the table names
another character of the same UTF-8 length which PCRE2 classifies as `tokenizers` classifies the first one. The
tokenizer shows PCRE2 that one instead, so offsets stay the same.

unicode_<name>: sets of characters as ranges, one for each component that decides by character; and the differences of
its normal forms (older than utf8proc's) and of its lower case (newer).

Needs the package `tokenizers` and the library libpcre2-8; run it again when either gets new tables:
    python3 tools/gen_unicode.py > src/text/unicode_new.h
"""
import ctypes
import ctypes.util
import sys

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn").split()
SCRIPTS = ("Han", "Hiragana", "Katakana", "Hangul")
CHARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CHARS))


def oracle_members(pattern):
    members = set()
    split = pre_tokenizers.Split(Regex(pattern + "+"), "removed", invert=True)
    for _, (start, end) in split.pre_tokenize_str(TEXT):
        members.update(CHARS[start:end])
    return members


def pcre2_members(pattern):
    lib = ctypes.CDLL(ctypes.util.find_library("pcre2-8"))
    lib.pcre2_compile_8.restype = ctypes.c_void_p
    lib.pcre2_match_data_create_from_pattern_8.restype = ctypes.c_void_p
    lib.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
    utf, ucp, no_check = 0x00080000, 0x00020000, 0x40000000
    error, where = ctypes.c_int(), ctypes.c_size_t()
    source = (pattern + "+").encode()
    code = lib.pcre2_compile_8(source, ctypes.c_size_t(len(source)), utf | ucp, ctypes.byref(error),
                               ctypes.byref(where), None)
    if not code:
        raise SystemExit(f"PCRE2 does not know {pattern}")
    lib.pcre2_jit_compile_8(ctypes.c_void_p(code), 1)
    data = lib.pcre2_match_data_create_from_pattern_8(ctypes.c_void_p(code), None)
    subject = TEXT.encode()
    members, at = set(), 0
    while lib.pcre2_match_8(ctypes.c_void_p(code), subject, ctypes.c_size_t(len(subject)), ctypes.c_size_t(at),
                            no_check, ctypes.c_void_p(data), None) > 0:
        bounds = lib.pcre2_get_ovector_pointer_8(ctypes.c_void_p(data))
        members.update(map(ord, subject[bounds[0]:bounds[1]].decode()))
        at = bounds[1]
    return members


def classes(members, script_prefix):
    """For each character: category, scripts, whether it is a space."""
    category = dict.fromkeys(CHARS, "Cn")
    for name in CATEGORIES:
        for c in members(r"\p{" + name + "}"):
            category[c] = name
    scripts = {name: members(r"\p{" + script_prefix + name + "}") for name in SCRIPTS}
    spaces = members(r"\s")
    return {c: (category[c], tuple(c in scripts[name] for name in SCRIPTS), c in spaces) for c in CHARS}


def utf8_bytes(c):
    return 1 if c < 0x80 else 2 if c < 0x800 else 3 if c < 0x10000 else 4


def probe(test):
    """The characters for which test is true, as ranges."""
    ranges = []
    for c in CHARS:
        if not test(chr(c)):
            continue
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


class Utf8proc:
    """What our own library knows."""

    def __init__(self):
        self.lib = ctypes.CDLL(ctypes.util.find_library("utf8proc"))
        self.lib.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_int16)
        self.lib.utf8proc_NFKD.restype = ctypes.c_void_p
        self.free = ctypes.CDLL(None).free

    def combining(self, c):
        return self.lib.utf8proc_get_property(ord(c))[1]

    def nfkd(self, c):
        p = self.lib.utf8proc_NFKD(c.encode())
        text = ctypes.string_at(p).decode()
        self.free(ctypes.c_void_p(p))
        return text

    def lower(self, c):
        return chr(self.lib.utf8proc_tolower(ord(c)))


def is_unordered(ours, c):
    """A mark that the package's normal forms do not put in order, and utf8proc would."""
    k = ours.combining(c)
    if k == 0:
        return False
    text = "a" + c + "\u0334" if k > 1 else "a\u0301" + c
    return normalizers.NFD().normalize_str(text) == text


def is_whole(ours, c):
    """A character that utf8proc decomposes and the package does not."""
    return c != "\0" and ours.nfkd(c) != c and normalizers.NFKD().normalize_str(c) == c


def sets():
    ours = Utf8proc()
    digits = pre_tokenizers.Digits(individual_digits=True)
    punctuation = pre_tokenizers.Punctuation("isolated")
    words = pre_tokenizers.Whitespace()
    accents = normalizers.StripAccents()
    off = {"handle_chinese_chars": False, "lowercase": False}
    clean = normalizers.BertNormalizer(clean_text=True, strip_accents=False, **off)
    marks = normalizers.BertNormalizer(clean_text=False, strip_accents=True, **off)
    return {
        "numeric": probe(lambda c: len(digits.pre_tokenize_str("a" + c + "a")) == 3),
        "punctuation": probe(lambda c: len(punctuation.pre_tokenize_str("a" + c + "a")) == 3),
        "word": probe(lambda c: len(words.pre_tokenize_str("a" + c + "a")) == 1),
        "accent": probe(lambda c: accents.normalize_str("a" + c) == "a"),
        "bert_mark": probe(lambda c: marks.normalize_str("a" + c) == "a"),
        "bert_dropped": probe(lambda c: clean.normalize_str("a" + c) == "a"),
        "unordered": probe(lambda c: is_unordered(ours, c)),
        "whole": probe(lambda c: is_whole(ours, c)),
    }


def write_new(out):
    theirs, ours = classes(oracle_members, ""), classes(pcre2_members, "sc:")
    differ = [c for c in CHARS if theirs[c] != ours[c]]
    stand_in = {}
    for c in CHARS:
        if theirs[c] == ours[c]:
            stand_in.setdefault((utf8_bytes(c),) + ours[c], c)
    ranges, missing = [], []
    for c in differ:
        other = stand_in.get((utf8_bytes(c),) + theirs[c])
        if other is None:
            missing.append(c)
        elif ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == other:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, other])
    for c in missing:
        print(f"no stand-in for U+{c:04X} {theirs[c]}", file=sys.stderr)
    blocks = sorted({c >> 6 for first, last, _ in ranges for c in range(first, last + 1)})
    words = [0] * (0x110000 >> 6 >> 5)
    for block in blocks:
        words[block >> 5] |= 1 << (block & 31)
    while words and words[-1] == 0:
        words.pop()
    out.write("/* Generated by tools/gen_unicode.py; do not edit.\n"
              f" * {len(differ)} characters that tokenizers {tokenizers.__version__} and PCRE2 10.42 classify "
              "differently, and for\n"
              " * each range one that stands in for it: same length in UTF-8, classified alike by both. */\n"
              "#ifndef TEXT_UNICODE_NEW_H\n#define TEXT_UNICODE_NEW_H\n\n#include <stdint.h>\n\n"
              "static const struct {\n    uint32_t first, last, as;\n} unicode_new[] = {\n")
    for i in range(0, len(ranges), 4):
        out.write("    " + " ".join("{0x%X, 0x%X, 0x%X}," % tuple(r) for r in ranges[i:i + 4]) + "\n")
    out.write("};\n\n/* One bit per 64 characters: some of them are in the table. */\n"
              f"#define UNICODE_NEW_WORDS {len(words)}\n"
              "static const uint32_t unicode_new_blocks[UNICODE_NEW_WORDS] = {\n")
    for i in range(0, len(words), 10):
        out.write("    " + " ".join("0x%X," % w for w in words[i:i + 10]) + "\n")
    out.write("};\n")


def write_ranges(out, name, ranges):
    out.write(f"\nstatic const struct unicode_range unicode_{name}[] = {{\n")
    for i in range(0, len(ranges), 5):
        out.write("    " + " ".join("{0x%X, 0x%X}," % tuple(r) for r in ranges[i:i + 5]) + "\n")
    out.write("};\n")


def main():
    out = sys.stdout
    write_new(out)
    out.write("\nstruct unicode_range {\n    uint32_t first, last;\n};\n")
    for name, ranges in sets().items():
        write_ranges(out, name, ranges)
    lower = normalizers.Lowercase()
    ours = Utf8proc()
    newer = [(ord(c), ord(lower.normalize_str(c))) for c in map(chr, CHARS)
             if len(lower.normalize_str(c)) == 1 and lower.normalize_str(c) != ours.lower(c)]
    out.write("\n/* {character, its lower case} later than utf8proc's tables. */\n")
    write_ranges(out, "lower_new", newer)
    out.write("\n#endif\n")


if __name__ == "__main__":
    main()
