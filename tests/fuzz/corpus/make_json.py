#!/usr/bin/env python3
"""Write the seeds of fuzz_json and fuzz_canary into the folders beside this file; run again after changing them."""
import pathlib

HERE = pathlib.Path(__file__).resolve().parent

JSON = {
    "object": b'{"a":7,"b":[1,2.5,-3e4,true,false,null,"x"],"c":{"d":{}}}',
    "string": rb'"caf\u00e9 \ud83c\udf3e \n\t\"\\ ' + "é".encode() + b'"',
    "nested": b"[" * 10 + b"]" * 10,
    "too_deep": b"[" * 129 + b"]" * 129,
    "duplicate": b'{"a":1,"a":2}',
    "integer": b'{"a":9223372036854775807,"b":9223372036854775808}',
    "truncated": b'{"a":[1,',
    "bytes": b'"\xff\xfe"',
    "reals": rb'{"a":0.1e-308,"b":1e308,"c":-0.0,"a\u0000":1}',
    "scalar": b" \t\r\n 3.0 ",
}
CANARY = {"harmless": b"abcd"}


def main():
    for target, seeds in (("fuzz_json", JSON), ("fuzz_canary", CANARY)):
        folder = HERE / target
        folder.mkdir(exist_ok=True)
        for name, content in seeds.items():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
