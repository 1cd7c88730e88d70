"""compute-sanitizer over bench/device_check.py --small: every kernel that the parity checks reach, under each of the
four tools. A line for each tool and group of checks; ends with 1 if anything was reported, a check failed or time ran
out.

usage: bench/cuda-sanitize [TOOL,...] [--only GROUP,...] [--jobs N] [--timeout SECONDS] [--log FILE]

Groups run in processes of their own, several at a time: the card is theirs by turns, so that kernels whose blocks wait
for each other have all of it while they run.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# cuBLASLt's kernels are not ours to check. But those whose names begin with nvjet end in an illegal memory access where
# racecheck (2025.3) leaves them out, so it looks at them, and what it says of them is put aside; and initcheck must see
# who writes.
LIBRARY = "nvjet|cublas|cutlass|gemm|gemv|splitKreduce"
BARRIERS = ["--num-cuda-barriers", "64"]  # in shared memory: as many as a resident kernel has
# the slowest first
TOOLS = {"racecheck": ["--kernel-name-exclude", "regex=" + LIBRARY.removeprefix("nvjet|"), "--print-limit", "10000",
                       "--racecheck-num-workers", "2", *BARRIERS],
         "initcheck": [],
         "memcheck": ["--kernel-name-exclude", "regex=" + LIBRARY],
         "synccheck": ["--kernel-name-exclude", "regex=" + LIBRARY, *BARRIERS]}
REPORTED = 9  # the exit status when a tool has something to say
# and how many processes share a group
GROUPS = {"attention": 4, "deterministic": 6, "resident": 5, "wide": 3, "slim": 3, "even": 3, "feed": 3, "products": 3,
          "models": 2, "flow": 1, "chosen": 1, "verify": 1, "architectures": 1, "checkpoint": 1, "sample": 1}
running = set()
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?$|RACECHECK SUMMARY: (\d+) hazard)", re.MULTILINE)
THEIRS = re.compile(rf"(?:Error|Warning): Race reported between \w+ access at \S*(?:{LIBRARY})")


def run(tool, group, part, port, timeout):
    """(what was reported, how it ended, seconds, all that was printed) of one process."""
    command = [
        "compute-sanitizer", "--tool", tool, "--error-exitcode", str(REPORTED), "--show-backtrace", "device",
        "--launch-timeout", "300", "--port", str(port), *TOOLS[tool], sys.executable,
        str(ROOT / "bench/device_check.py"), "--small", "--seed", "1", "--only", group, "--part",
        f"{part}/{GROUPS[group]}"]
    began = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}) as p:
        running.add(p.pid)
        try:
            text, code = p.communicate(timeout=timeout)[0], p.returncode
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            text, code = p.communicate()[0], None
        running.remove(p.pid)
    found = [int(a or b) for a, b in SUMMARY.findall(text)]
    ours = sum(found) - len(THEIRS.findall(text))
    is_clean = len(found) == 1 and ours == 0 and code in (0, REPORTED) and "\n0 mismatches\n" in text
    ended = "timed out" if code is None else "ok" if is_clean else "FAILED" if found else "no summary"
    return max(ours, 0), ended, time.time() - began, f"#### {tool} {group} {part}: {' '.join(command)}\n{text}\n"


def show(line, results):
    """The line of a tool and a group; whether something is wrong there."""
    ended = sorted({r[1] for r in results if r[1] != "ok"}) or ["ok"]
    print(f"{line[0]:10} {line[1]:14} {sum(r[0] for r in results):5} reports {max(r[2] for r in results):6.0f} s  "
          f"{', '.join(ended)}", flush=True)
    return ended != ["ok"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="?", default=",".join(TOOLS), help="with commas between")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of checks, with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--timeout", type=float, default=900, help="of one process, in seconds")
    parser.add_argument("--log", default="build/sanitize.log", help="what the sanitizers print")
    args = parser.parse_args()
    for given, known in ((args.tools, TOOLS), (args.only, GROUPS)):
        for word in given.split(","):
            if word not in known:
                parser.error(f"{word}: none of {', '.join(known)}")
    if shutil.which("compute-sanitizer") is None:
        sys.exit("there is no compute-sanitizer here; it comes with the CUDA toolkit")
    pathlib.Path(args.log).parent.mkdir(parents=True, exist_ok=True)
    failed, lines, waiting = 0, {}, {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, open(args.log, "w", encoding="utf-8") as log:
        for line in ((tool, group) for tool in args.tools.split(",") for group in args.only.split(",")):
            if line == ("racecheck", "chosen"):  # which has the kernels of products and feed, and more of the library's
                continue
            lines[line] = []
            for part in range(1, GROUPS[line[1]] + 1):
                waiting[pool.submit(run, *line, part, 30000 + 16 * len(waiting), args.timeout)] = line
        try:
            for done in concurrent.futures.as_completed(waiting):
                line, result = waiting[done], done.result()
                lines[line].append(result)
                log.write(result[3])
                log.flush()
                if len(lines[line]) == GROUPS[line[1]]:
                    failed += show(line, lines[line])
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pool.shutdown(wait=False, cancel_futures=True)
            for pid in list(running):
                os.killpg(pid, signal.SIGKILL)
            return 130
    print(f"{failed} of {len(lines)} failed; see {args.log}")
    return 1 if failed or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
