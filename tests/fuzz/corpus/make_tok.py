#!/usr/bin/env python3
"""Write the seeds of fuzz_tokenizer_json and fuzz_spm into the folders beside this file; run it after changing them."""
import base64
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
SPACE = "\u2581"
ADDED = [{"id": 5, "content": "<s>", "special": True, "normalized": False, "lstrip": True, "rstrip": True},
         {"id": 6, "content": "word", "special": False, "normalized": True, "single_word": True}]
BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120a": 4}, "merges": ["a b", ["\u0120", "a"]]}
CHARSMAP = base64.b64encode(struct.pack("<IIII", 12, 0x400, 0, 0) + b"x\0").decode()


def byte_level(pattern, **more):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}
    return dict({"model": BPE}, **more, added_tokens=ADDED, decoder={"type": "ByteLevel"},
                pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})


def files():
    yield "byte_level", byte_level(r"\p{L}+|[^\s\p{L}]+|\s+(?!\S)|\s+", normalizer={"type": "NFC"})
    yield "intersection", byte_level(r"[\p{L}&&[^\p{Han}]]+|\d{1,3}+|\w|.", model=dict(BPE, ignore_merges=True))
    for behaviour in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield "split_" + behaviour, {"model": BPE, "pre_tokenizer": {
            "type": "Split", "pattern": {"String": "a"}, "behavior": behaviour, "invert": behaviour == "Removed"}}
    names = ["<unk>", SPACE, SPACE + "a", "b", "<0x0A>", "<0xFF>"]
    yield "unigram", {"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [
        [n, -1.0 - i] for i, n in enumerate(names)]}, "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"},
        "decoder": {"type": "Metaspace"}, "normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}}
    words = {"[UNK]": 0, "a": 1, "##b": 2, "[CLS]": 3}
    yield "bert", {"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": words},
                   "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
                   "post_processor": {"type": "BertProcessing", "sep": ["x", 3], "cls": ["x", 3]},
                   "decoder": {"type": "WordPiece"}}
    yield "fallback", {"model": {"type": "BPE", "byte_fallback": True, "unk_token": "u", "fuse_unk": True,
                                 "vocab": {"u": 0, "a": 1, "b": 2, "ab": 3, "<0xFF>": 4}, "merges": ["a b"]},
                       "normalizer": {"type": "Sequence", "normalizers": [
                           {"type": "Prepend", "prepend": SPACE}, {"type": "Strip"}, {"type": "Lowercase"},
                           {"type": "Replace", "pattern": {"Regex": " +"}, "content": SPACE}, {"type": "Nmt"}]},
                       "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def piece(name, score, kind):
    return field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))


def spm(kind, normalizer=b""):
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), (SPACE, -1, 1), ("a", -2, 1), ("b", -3, 1),
              ("ab", -1.5, 1), (SPACE + "ab", -1.2, 1), ("<x>", 0, 4), ("<0xFF>", 0, 6), ("<0x0A>", 0, 6),
              ("unused", 0, 5)]
    return b"".join(piece(*p) for p in pieces) + field(2, bytes([0x18, kind])) + field(3, normalizer)


def main():
    folder = HERE / "fuzz_tokenizer_json"
    folder.mkdir(exist_ok=True)
    for name, content in files():
        text = json.dumps(content, ensure_ascii=False).encode()
        (folder / name).write_bytes(text + "\0a word <s> ab\u4e2d12\n".encode() + b"\xff")
    folder = HERE / "fuzz_spm"
    folder.mkdir(exist_ok=True)
    (folder / "bpe").write_bytes(spm(2))
    (folder / "unigram").write_bytes(spm(1, b"\x18\x00\x20\x01"))
    (folder / "map").write_bytes(spm(2, field(2, base64.b64decode(CHARSMAP)) + b"\x28\x00"))


if __name__ == "__main__":
    main()
