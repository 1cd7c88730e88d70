"""Comparing a tokenizer of quern with its original: every way in, every way out, and the smallest text that differs."""

import dataclasses
import random

import tok_strings


@dataclasses.dataclass
class Difference:
    what: str
    text: object
    ours: object
    theirs: object

    def __str__(self):
        return f"{self.what}\n  text   {self.text!r}\n  ours   {self.ours}\n  theirs {self.theirs}"


def shrink(text, differs):
    """The shortest text we can cut it down to that still differs: halves, then single characters."""
    size = max(1, len(text) // 2)
    while size >= 1:
        i = 0
        while i < len(text):
            shorter = text[:i] + text[i + size :]
            if differs(shorter):
                text = shorter
            else:
                i += size
        size //= 2
    return text


def compare_encode(oracle, texts, keep=5, modes=None):
    """Number of texts whose ids differ in any mode, and the first few, cut down."""
    bad, shown = set(), []
    for trusted, add_special in modes or oracle.modes:
        ours = oracle.quern.encode(texts, trusted, add_special)
        theirs = oracle.encode(texts, trusted, add_special)

        def differs(text, trusted=trusted, add_special=add_special):
            return oracle.quern.encode([text], trusted, add_special) != oracle.encode([text], trusted, add_special)

        for i, (a, b) in enumerate(zip(ours, theirs)):
            if a == b:
                continue
            bad.add(i)
            if len(shown) < keep:
                small = shrink(texts[i], differs) if differs(texts[i]) else texts[i]
                shown.append(
                    Difference(
                        f"encode trusted={trusted} add_special={add_special}",
                        small,
                        oracle.quern.encode([small], trusted, add_special)[0],
                        oracle.encode([small], trusted, add_special)[0],
                    )
                )
    return len(bad), shown


def as_text(data):
    return data.decode("utf-8", "replace")


def texts_agree(oracle, ours, theirs):
    """With byte fallback the original replaces a whole run of bytes when one of them is bad; a stream cannot take back
    what it gave, so quern replaces only that one."""
    if oracle.byte_fallback and "\ufffd" in theirs:
        return True
    return as_text(ours) == theirs


def compare_decode(oracle, lists, keep=5):
    """The same for id lists: all at once against the original, and id by id against all at once."""
    bad, shown = set(), []
    for skip in oracle.decode_modes:
        ours = oracle.quern.decode(lists, skip)
        streamed = oracle.quern.decode(lists, skip, stream=True)
        theirs = oracle.decode(lists, skip)
        for i, (a, s, b) in enumerate(zip(ours, streamed, theirs)):
            if as_text(a) != as_text(s):
                bad.add(i)
                shown.append(Difference(f"stream skip_special={skip}", lists[i], s, a))
            if not texts_agree(oracle, a, b):
                bad.add(i)
                if len(shown) < keep:

                    def differs(ids, skip=skip):
                        return not texts_agree(
                            oracle, oracle.quern.decode([ids], skip)[0], oracle.decode([ids], skip)[0]
                        )

                    small = shrink(lists[i], differs)
                    ours_small, theirs_small = oracle.quern.decode([small], skip)[0], oracle.decode([small], skip)[0]
                    shown.append(Difference(f"decode skip_special={skip}", small, ours_small, theirs_small))
    return len(bad), shown


def random_lists(oracle, n, seed):
    """Id lists that no text gives: anything in the vocabulary, in any order."""
    r = random.Random(f"quern-ids-{seed}")
    count = oracle.quern.count()
    return [[r.randrange(count) for _ in range(r.randint(0, 12))] for _ in range(n)]


def check(name, oracle, n):
    """Everything at once; prints the line of the report and returns the differences."""
    texts = tok_strings.strings(name, n, oracle.specials)
    n_encode, shown = compare_encode(oracle, texts)
    trusted, add_special = oracle.modes[0]
    lists = oracle.encode(texts[: n // 2], trusted, add_special) + random_lists(oracle, min(n // 4, 2000), name)
    lists = [ids for ids in lists if oracle.decodable(ids)]
    n_decode, more = compare_decode(oracle, lists)
    n_trip = 0
    if oracle.exact_round_trip:
        for text, back in zip(texts, oracle.quern.decode(oracle.quern.encode(texts), skip_special=False)):
            if back != text.encode():
                n_trip += 1
                if n_trip == 1:
                    more.append(Difference("round trip", text, back, text))
    trip = f"{n_trip} lost" if oracle.exact_round_trip else "not promised"
    print(
        f"{name}: {len(texts)} strings, {n_encode} mismatches; {len(lists)} id lists, {n_decode} mismatches; "
        f"round trip {trip}"
    )
    return shown + more, n_encode + n_decode + n_trip
