"""The same bits from gcc and clang at every optimisation level: the tests that pin checksums of the elementary
functions, the products and the attention are built again, with the files that compute them, by each compiler."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBS = pathlib.Path(os.environ.get("QUERN_BUILD", ROOT / "build/release")) / "src"
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-math-errno", "-I", "src", "-I", "tests/unit"]
KERNELS = ["src/cpu/ops_ref.c", "src/cpu/attend_ref.c", "src/cpu/unpack.c", "src/tensor/fmath.c",
           "src/tensor/float_convert.c", "src/tensor/quant_legacy.c", "src/tensor/quant_k.c", "src/tensor/quant_iq.c",
           *sorted(str(p) for p in ROOT.glob("tests/unit/cpu/testing_*.c"))]
TESTS = {
    "fmath": ["tests/unit/tensor/test_fmath.c", "src/tensor/fmath.c"],
    "products": ["tests/unit/cpu/test_products.c", *KERNELS],
    "attend": ["tests/unit/cpu/test_attend.c", *KERNELS],
}


def build_and_run(tmp_path, compiler, flags, names):
    program = tmp_path / "golden"
    libs = [str(LIBS / f"libquern_{room}.a") for room in ("cpu", "tensor", "base")]  # the rest of what is linked
    subprocess.run([compiler, *flags, *FLAGS, *names, *libs, "-lcmocka", "-lcrypto", "-ljansson", "-lpthread",
                    "-lm", "-o", str(program)], cwd=ROOT, check=True)
    return subprocess.run([str(program)], cwd=ROOT, text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", TESTS)
def test_bits_do_not_depend_on_the_compiler(tmp_path, name, compiler, level):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    if not (LIBS / "libquern_base.a").exists():
        pytest.fail("build/release is not built")
    result = build_and_run(tmp_path, compiler, [level], TESTS[name])
    assert result.returncode == 0, result.stdout + result.stderr


def test_other_arithmetic_is_noticed(tmp_path):
    """The twin: reassociation changes last bits, and the pinned checksum sees it."""
    result = build_and_run(tmp_path, "gcc", ["-O2", "-ffast-math"], TESTS["fmath"])
    assert result.returncode != 0 and "the_bits_are_the_same" in result.stdout + result.stderr
