#!/usr/bin/env bash
# Compute the files of tests/golden anew with the programs quern is compared with, and hold quern to them in full.
#   tools/goldens.sh           write all of them, then check
#   tools/goldens.sh llama     those of llama.cpp only (compiles it twice: 20 to 60 minutes on two cores)
#   tools/goldens.sh torch     those of transformers only (installs torch: about 3 GB)
#   tools/goldens.sh check     write nothing: the whole default-model comparison, 8,192 tokens
# Each has an environment of its own under build/, so that the tests need neither. Needs a network, and the release
# build for `quern pull`.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
quern=${QUERN_BIN:-build/release/quern}

environment() { # name packages...
    local folder=build/goldens-$1
    shift
    if [ ! -x "$folder/bin/python" ]; then python3 -m venv "$folder"; fi
    "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@" >&2
}

model_path() {
    "$quern" pull >&2
    "$quern" inspect smollm2-135m-instruct --json |
        .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["path"])'
}

mkdir -p build tests/golden
common=(numpy==2.4.6 gguf==0.19.0 safetensors==0.8.0)
if [ "$what" = all ] || [ "$what" = torch ]; then
    environment torch "${common[@]}" torch==2.15.0 transformers==5.22.2
    build/goldens-torch/bin/python tests/py/golden_transformers.py tests/golden/transformers.npz
fi
if [ "$what" = all ] || [ "$what" = llama ]; then
    environment llama "${common[@]}" llama-cpp-python==0.3.36
    build/goldens-llama/bin/python tests/py/golden_llama.py tests/golden "$(model_path)"
    # and once with OpenBLAS, which rounds no inputs; a wheel that pip has kept would be one without
    dpkg -s libopenblas-dev >/dev/null 2>&1 || apt-get install -y -q libopenblas-dev >&2
    environment blas "${common[@]}"
    CMAKE_ARGS="-DGGML_BLAS=ON -DGGML_BLAS_VENDOR=OpenBLAS -DGGML_CPU_REPACK=OFF" environment blas --no-cache-dir \
        --no-binary llama-cpp-python llama-cpp-python==0.3.36
    build/goldens-blas/bin/python tests/py/golden_llama.py tests/golden "$(model_path)" blas
fi
QUERN_GOLDEN_ALL=1 QUERN_DEFAULT_MODEL=$(model_path) .venv/bin/python -m pytest -q tests/py/test_model_llama.py
