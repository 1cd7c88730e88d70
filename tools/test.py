#!/usr/bin/env python3
"""Run every test of quern and end with one line: N passed, N failed, N skipped.

Stages, in the order in which they are cheapest to fail:
  tidy    rules of the tree (tools/tidy.py)
  unit    cmocka programs under ctest, built four ways: gcc, clang, ASan+UBSan, TSan (see ROOMS)
  sim     a thousand hours of a simulated server's life (bench/sim.c), every property checked at every step
  python  oracle and end-to-end tests (tests/py) against the release binary
  fuzz    every libFuzzer target on its seed corpus plus a short run; the canary must crash
  cuda    compile the CUDA code where nvcc is present, run its kernels emulated and its host code on a made-up card

Only the standard library is used. A stage that cannot run is a failure, not a skip; skips come from single tests and
are printed with their reason.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
JOBS = os.cpu_count() or 2
# What each build looks at: rooms, or programs of a room. With clang: the rooms that compute, whose bits must be those
# of gcc (the fuzz stage compiles the whole tree with clang). With TSan: the rooms that start threads or are driven by
# several. None: every room.
ROOMS = {"release": None, "clang": ("tensor", "cpu", "sample", "model"), "asan": None,
         "tsan": ("base", "grammar/test_threads", "cpu", "model", "engine", "api")}
# What a build leaves out. With TSan: faults that are planted to be found, shapes that one thread binds, and storms over
# models whose threads are those of another storm.
WITHOUT = {"tsan": ("cpu/test_violations", "model/test_dummy", "engine/test_storm_llama", "engine/test_storm_qwen3")}
# Python tests of servers watch clocks: they have the machine to themselves. The others run side by side; the longest,
# in seconds, are named so that the sides end together.
PYTHON_ALONE = ("test_server", "test_page", "test_top", "test_structured", "test_tools", "test_messages",
                "test_speculative", "test_replay", "test_embeddings")
PYTHON_SECONDS = {"test_tokenizers": 180, "test_golden_bits": 42, "test_chat": 31, "test_model_llama": 21,
                  "test_run": 12, "test_model_reference": 11, "test_inspect": 10, "test_hub_download": 9,
                  "test_format": 9, "test_hub_models": 9, "test_chat_random": 7, "test_run_chat": 5, "test_plan": 5}
PYTHON_OTHERS = 2


class Tally:
    """Counts over all stages; a failure keeps a line for the summary."""

    def __init__(self):
        self.passed = 0
        self.failures = []
        self.skips = []

    def ok(self, n=1):
        self.passed += n

    def fail(self, what):
        self.failures.append(what)
        print(f"FAILED {what}", flush=True)

    def skip(self, what, why):
        self.skips.append(what)
        print(f"SKIPPED {what}: {why}", flush=True)


def run(argv, **kw):
    return subprocess.run(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)


def build(preset, tally, targets=()):
    """Configure and build a preset, all of it or some targets; True when it worked."""
    some = ["--target", *targets] if targets else []
    for argv in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset, *some]):
        result = run(argv)
        if result.returncode != 0:
            print(result.stdout)
            tally.fail(f"build {preset}")
            return False
    tally.ok()
    return True


def stage_tidy(tally, _args):
    result = run([sys.executable, "tools/tidy.py"])
    if result.returncode == 0:
        tally.ok()
    else:
        print(result.stdout)
        tally.fail("tidy")


def count_cmocka(name, case, tally):
    """Add the cmocka counts of one ctest case; the program's own totals are on its output. A case that is not called
    test_something is another kind of program, which ctest judges: one test."""
    out = "".join(node.text or "" for node in case.iter("system-out"))
    failed_names = re.findall(r"^\[  FAILED  \] (\w+)\s*$", out, re.M)
    counts = {kind: sum(int(n) for n in re.findall(rf"\[  {kind}\] (\d+) test", out))
              for kind in ("PASSED  ", "SKIPPED ")}
    tally.ok(counts["PASSED  "])
    reasons = re.findall(r"^SKIP:? (.*)$", out, re.M)
    for skipped in re.findall(r"^\[  SKIPPED \] (\w+)\s*$", out, re.M)[: counts["SKIPPED "]]:
        tally.skip(f"{name} {skipped}", reasons[0] if reasons else "see its output")
    broken = case.get("status") != "run" or case.find("failure") is not None
    for failed in dict.fromkeys(failed_names):
        tally.fail(f"{name} {failed}")
    if broken:
        if not failed_names:
            tally.fail(f"{name} (crash, timeout or sanitizer report)")
        print(out[-8000:])
    elif "/test_" not in name:
        tally.ok()
    elif counts["PASSED  "] + counts["SKIPPED "] == 0:
        tally.fail(f"{name} ran no test")


def unit_programs(preset):
    """What a build looks at, as room/test_name; [] means all there is."""
    names = []
    for what in ROOMS[preset] or ():
        room, _, program = what.partition("/")
        files = sorted((ROOT / "tests" / "unit" / room).glob(f"{program or 'test_*'}.c"))
        names += [f"{room}/{file.stem}" for file in files]
    without = WITHOUT.get(preset, ())
    assert set(without) <= set(names)
    return [name for name in names if name not in without]


def run_ctest(preset, pattern, env, tally):
    """The programs of a build that match, counted; how many there were."""
    report = BUILD / preset / "ctest.xml"
    report.unlink(missing_ok=True)
    run(["ctest", "--test-dir", str(BUILD / preset), "-j", str(JOBS), "--output-junit", str(report),
         "--test-output-size-passed", "1000000", "--test-output-size-failed", "1000000"] +
        (["-R", pattern] if pattern else []), env=env)
    cases = ET.parse(report).getroot().findall("testcase") if report.exists() else []
    if not cases:
        tally.fail(f"{preset}: ctest found no test")
    for case in cases:
        count_cmocka(f"{preset}:{case.get('name')}", case, tally)
    return len(cases)


def stage_unit(tally, _args):
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="STDOUT", ASAN_OPTIONS="detect_leaks=1:abort_on_error=0",
               UBSAN_OPTIONS="print_stacktrace=1", TSAN_OPTIONS="halt_on_error=1")
    for preset in ROOMS:
        began = time.monotonic()
        names = unit_programs(preset)
        if build(preset, tally, [name.replace("/", "_") for name in names]):
            n = run_ctest(preset, f"^({'|'.join(names)})$" if names else "", env, tally)
            print(f"unit {preset}: {n} programs, {time.monotonic() - began:.0f} s", flush=True)


def stage_sim(tally, args):
    """Histories in as many processes as there are cores, each with its own row of seeds."""
    program = BUILD / "release" / "tests" / "quern_sim"
    if not build("release", tally):
        return
    each = args.sim_hours / JOBS

    def history(i):
        return run([str(program), "--hours", f"{each:.3f}", "--seed", str(args.sim_seed + i * 1000000)])

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(history, range(JOBS)))
    hours = sum(float(n) for r in results for n in re.findall(r"^([\d.]+) simulated hours", r.stdout, re.M))
    for result in results:
        if result.returncode == 0:
            tally.ok()
        else:
            print(result.stdout[-2000:])
            tally.fail("simulation: " + (result.stdout.strip().splitlines() or ["it crashed"])[-1])
    print(f"sim: {hours:.0f} simulated server-hours from seed {args.sim_seed}", flush=True)
    if hours < args.sim_hours * 0.999 and not tally.failures:
        tally.fail(f"sim: only {hours:.0f} of {args.sim_hours} hours")


def get_default_model():
    """Into the cache, as `make serve` does; without a network the tests that need it skip and say so."""
    path = f"{ROOT}/.venv/bin:{os.environ.get('PATH', '')}"
    result = run([str(BUILD / "release" / "quern"), "pull"], env=dict(os.environ, PATH=path))
    if result.returncode != 0:
        print(f"the default model cannot be fetched: {result.stdout.strip().splitlines()[-1:]}", flush=True)


def shards(files):
    """As many lists as there are cores, of about the same length in time."""
    lists = [[] for _ in range(JOBS)]
    seconds = [0] * JOBS
    for file in sorted(files, key=lambda f: -PYTHON_SECONDS.get(f.stem, PYTHON_OTHERS)):
        i = seconds.index(min(seconds))
        lists[i].append(file)
        seconds[i] += PYTHON_SECONDS.get(file.stem, PYTHON_OTHERS)
    return [x for x in lists if x]


def run_pytest(files, report, **env):
    report.unlink(missing_ok=True)
    return run([sys.executable, "-m", "pytest", "-q", "--tb=short", "-rs", "--durations=10", "-p", "no:cacheprovider",
                f"--junitxml={report}", *map(str, files)], env=os.environ | env)


def count_pytest(result, report, tally):
    print(result.stdout, flush=True)
    if not report.exists():
        tally.fail(f"{report.stem} wrote no report")
        return
    cases = list(ET.parse(report).getroot().iter("testcase"))
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.fail(name)
        elif skipped is not None:
            tally.skip(name, skipped.get("message"))
        else:
            tally.ok()
    if result.returncode not in (0, 1) or not cases:
        tally.fail(f"{report.stem} ended with code {result.returncode} after {len(cases)} tests")


def stage_python(tally, _args):
    get_default_model()
    files = sorted((ROOT / "tests" / "py").glob("test_*.py"))
    alone = [f for f in files if f.stem.startswith(PYTHON_ALONE)]
    lists = shards([f for f in files if f not in alone])
    reports = [BUILD / f"pytest-{i}.xml" for i in range(len(lists))] + [BUILD / "pytest-alone.xml"]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(run_pytest, lists, reports))
    results.append(run_pytest(alone, reports[-1]))
    for result, report in zip(results, reports):
        count_pytest(result, report, tally)


def fuzz_one(target, seconds, seed):
    """The seed corpus first, then a timed run from a fixed seed, so that a commit that passed passes again (`make soak`
    takes its seed from the clock). Returns (ok, tail of the output)."""
    name = target.name
    seeds = ROOT / "tests" / "fuzz" / "corpus" / name
    scratch = BUILD / "fuzz" / "corpus" / name
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    argv = [str(target), f"-seed={seed}", f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
            "-print_final_stats=1", f"-artifact_prefix={BUILD}/fuzz/crash-{name}-", str(scratch)]
    dictionary = ROOT / "tests" / "fuzz" / f"{name}.dict"
    if dictionary.exists():
        argv.append(f"-dict={dictionary}")
    if seeds.is_dir():
        argv.append(str(seeds))
    result = run(argv)
    return result.returncode == 0, result.stdout[-4000:]


def stage_fuzz(tally, args):
    if not build("fuzz", tally):
        return
    targets = sorted(p for p in (BUILD / "fuzz" / "tests").glob("fuzz_*") if p.is_file() and os.access(p, os.X_OK))
    if not any(t.name == "fuzz_canary" for t in targets):
        tally.fail("fuzz: no canary")
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = pool.map(lambda t: (t, fuzz_one(t, args.fuzz_seconds, args.fuzz_seed)), targets)
        for target, (ok, tail) in results:
            if target.name == "fuzz_canary":
                if ok:
                    tally.fail("fuzz_canary did not crash: the harness finds nothing")
                else:
                    tally.ok()
            elif ok:
                tally.ok()
                runs = re.search(r"number_of_executed_units: (\d+)", tail)
                print(f"{target.name}: {runs.group(1) if runs else '?'} runs", flush=True)
            else:
                print(tail)
                tally.fail(target.name)


def stage_cuda(tally, _args):
    """The CUDA room and what links it; the other rooms are those of release, which are compiled alike. Kernels run on
    the host, emulated; the program runs on a card that is made up."""
    if shutil.which("nvcc") is None:
        tally.skip("cuda build", "nvcc is not installed")
        return
    emulated = sorted(f.stem.replace("test", "cuda_emulated") for f in (ROOT / "tests" / "cuda").glob("test_*.cc"))
    targets = ["quern", "quern_testing", "quern_speculative", "quern_structured_many", "quern_on_a_card", *emulated]
    if build("release", tally) and build("cuda-check", tally, targets):
        run_ctest("cuda-check", "^cuda/emulated_", os.environ, tally)
        report, card = BUILD / "pytest-cuda.xml", BUILD / "cuda-check" / "tests" / "quern_on_a_card"
        count_pytest(run_pytest([ROOT / "tests/cuda/test_card.py"], report, QUERN_BIN=str(card)), report, tally)


STAGES = {"tidy": stage_tidy, "unit": stage_unit, "sim": stage_sim, "python": stage_python, "fuzz": stage_fuzz,
          "cuda": stage_cuda}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=STAGES, action="append", help="run only this stage (may be repeated)")
    parser.add_argument("--fuzz-seconds", type=int, default=7, help="length of each fuzz run")
    parser.add_argument("--fuzz-seed", type=int, default=1, help="seed of the fuzz runs")
    parser.add_argument("--sim-hours", type=float, default=1000, help="simulated server-hours in all")
    parser.add_argument("--sim-seed", type=int, default=1, help="first seed of the simulated histories")
    args = parser.parse_args()
    tally = Tally()
    for name in args.only or STAGES:
        began = time.monotonic()
        print(f"== {name}", flush=True)
        STAGES[name](tally, args)
        print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)
    for what in tally.failures:
        print(f"FAILED {what}")
    print(f"{tally.passed} passed, {len(tally.failures)} failed, {len(tally.skips)} skipped")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
