"""Writes the seeds of fuzz_zip and fuzz_hub_listing beside this file."""

import io
import json
import pathlib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def wheel(members, method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            z.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def listing(want, names, **more):
    siblings = [{"rfilename": name, "size": 10, "blobId": "b" * 40} for name in names]
    siblings.append({"rfilename": "w.safetensors", "size": 9, "lfs": {"sha256": "c" * 64, "size": 9}})
    return f"{want}\n{json.dumps({'sha': 'a' * 40, 'siblings': siblings, **more})}".encode()


def write(target, seeds):
    folder = HERE / target
    folder.mkdir(exist_ok=True)
    for name, data in seeds.items():
        (folder / name).write_bytes(data)


HELLO = b"hello, wheel\n"
write("fuzz_zip", {
    "stored": wheel([("p/m", HELLO)], zipfile.ZIP_STORED),
    "deflated": wheel([("a", b"1"), ("p/m", HELLO), ("../z", b"2")], zipfile.ZIP_DEFLATED),
    "wrong": wheel([("p/m", HELLO[::-1])], zipfile.ZIP_DEFLATED),
    "comment": wheel([("p/m", HELLO)], zipfile.ZIP_STORED)[:-2] + b"\x03\x00abc",
})
write("fuzz_hub_listing", {
    "quants": listing("Q4_K_M", ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj.gguf"]),
    "split": listing("", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
    "folder": listing("", ["config.json", "tokenizer.json", ".gitattributes"]),
    "hostile": listing("hf:o/r@v:x.gguf", ["../x.gguf", "/etc/x", "a/.b/c.gguf"]),
    "url": listing("https://h/x.gguf?y", []),
})
