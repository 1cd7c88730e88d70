"""llama.cpp's server for bench/server: the source that the package llama-cpp-python carries, built once.

The package comes as source, by name and version, from wherever pip gets its packages; nothing else is fetched. The
build is llama.cpp's own default for a release on this machine (native instructions, OpenMP), without its web page. It
takes some minutes and stays in build/peers/llama-server. QUERN_PEER_SERVER names a binary to use instead.

usage: bench/server_peer.py        build it now and print where it is
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "llama-cpp-python==0.3.36"  # the version of bench/cpu.py
FOLDER = ROOT / "build/peers/llama-server"
BINARY = FOLDER / "build/bin/llama-server"


def fetch_source():
    """The folder of llama.cpp inside the unpacked package."""
    unpacked = FOLDER / "source"
    if not unpacked.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d",
                        FOLDER, PACKAGE], check=True)
        archive = next(FOLDER.glob("llama_cpp_python-*.tar.gz"))
        part = FOLDER / "source.part"
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
        part.rename(unpacked)
    return next(unpacked.glob("*/vendor/llama.cpp"))


def peer_server():
    """The path of llama-server, built when it is not there."""
    if "QUERN_PEER_SERVER" in os.environ:
        return pathlib.Path(os.environ["QUERN_PEER_SERVER"])
    if not BINARY.exists():
        print(f"building llama-server of {PACKAGE} in {FOLDER.relative_to(ROOT)}; it takes some minutes",
              file=sys.stderr)
        FOLDER.mkdir(parents=True, exist_ok=True)
        source = fetch_source()
        log = FOLDER / "build.log"
        with open(log, "w", encoding="utf-8") as out:
            for argv in (["cmake", "-S", source, "-B", FOLDER / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                          "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF",
                          "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"],
                         ["cmake", "--build", FOLDER / "build", "--target", "llama-server", "-j",
                          str(os.cpu_count() or 2)]):
                if subprocess.run([str(a) for a in argv], stdout=out, stderr=out, check=False).returncode != 0:
                    raise SystemExit(f"llama-server does not build; see {log.relative_to(ROOT)}")
    return BINARY


if __name__ == "__main__":
    print(peer_server())
