#!/usr/bin/env python3
"""Writes src/grammar/categories.h: the general category of every code point, as ranges, from Python's unicodedata.

usage: tools/make-category-table.py > src/grammar/categories.h
"""
import sys
import unicodedata

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()


def ranges():
    start, current = 0, unicodedata.category(chr(0))
    for code in range(1, 0x110000):
        category = unicodedata.category(chr(code))
        if category != current:
            yield start, current
            start, current = code, category
    yield start, current


def main():
    rows = [f"R({start:#x},{category})" for start, category in ranges()]
    print("/* Made by tools/make-category-table.py: where each run of code points of one general category begins.")
    print(f" * Unicode {unicodedata.unidata_version}; do not edit. */")
    print("#ifndef GRAMMAR_CATEGORIES_H")
    print("#define GRAMMAR_CATEGORIES_H")
    print()
    print("#include <stdint.h>")
    print()
    print("/* clang-format off */")
    print("enum {")
    for i in range(0, len(CATEGORIES), 10):
        print("    " + ", ".join(CATEGORIES[i:i + 10]) + ",")
    print("};")
    print("#define R(from, category) {(from) << 8 | (category)}")
    print("static const struct { uint32_t packed; } RUNS[] = {")
    line = ""
    for row in rows:
        if len(line) + len(row) + 1 > 118:
            print(line)
            line = ""
        line += row + ","
    print(line)
    print("};")
    print("#undef R")
    print("/* clang-format on */")
    print()
    print("#endif")
    return 0


if __name__ == "__main__":
    sys.exit(main())
