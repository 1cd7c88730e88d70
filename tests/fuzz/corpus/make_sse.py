"""Seeds for fuzz_sse: six bytes of choices, then what the model says."""
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent / "fuzz_sse"
TEXTS = {"plain": b"Hello, world.", "quotes": b'{"a":"\\\\b\\n"}\n', "breaks": b"a\r\n\n\ndata: [DONE]\n\nid: 7\n\n",
         "utf8": "\u00e9\u4e2d\U0001f600\u2028".encode(), "broken": b"\xff\xfe\xc3(\xe4\xb8x\xf0\x9f\x98",
         "stops": b"xxab\n\nyyab", "control": bytes(range(32)) + b"\x7f", "long": b"word " * 100}
HEADS = {"": bytes(6), "-chat": bytes([129, 0x3F, 2, 64, 0, 3]), "-all": bytes([2, 0x7F, 3, 130, 5, 131])}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        for suffix, head in HEADS.items():
            (FOLDER / f"{name}{suffix}").write_bytes(head + text)


if __name__ == "__main__":
    main()
