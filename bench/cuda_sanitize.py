"""compute-sanitizer over bench/device_check.py --small: every kernel that the parity checks reach, under each of the
four tools. Names what was reported, what failed and what had no time, then a line for each tool; ends with 1 if there
was any of it.

usage: bench/cuda-sanitize [TOOL,...] [--only GROUP,...] [--jobs N] [--limit SECONDS] [--log FILE]

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
                       "--racecheck-num-workers", "1", *BARRIERS],
         "initcheck": [],
         "memcheck": ["--kernel-name-exclude", "regex=" + LIBRARY],
         "synccheck": ["--kernel-name-exclude", "regex=" + LIBRARY, "--print-limit", "10000", *BARRIERS]}
REPORTED = 9  # the exit status when a tool has something to say
# The slowest first; how many processes share a group under racecheck, and under the others, where most of a process's
# time is its start.
GROUPS = {"requests": (1, 1), "chosen": (1, 1), "deterministic": (6, 2), "resident": (4, 2), "checkpoint": (3, 1),
          "verify": (2, 1), "models": (3, 1), "architectures": (3, 1), "feed": (4, 2), "attention": (4, 2),
          "wide": (3, 1), "slim": (3, 2), "sample": (1, 1), "even": (2, 2), "products": (2, 1), "flow": (1, 1)}
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?$|RACECHECK SUMMARY: (\d+) hazard)", re.MULTILINE)
WHERE = re.compile(r"^=+ +at (?:void )?([^(+]+)", re.MULTILINE)
THEIRS = re.compile(rf"(?:Error|Warning): Race reported between \w+ access at \S*(?:{LIBRARY})")
running = set()


class Job:
    """A part of a group under a tool: what to run, then how it went."""

    def __init__(self, tool, group, part, parts, port):
        self.tool, self.group, self.name = tool, group, f"{tool} {group} {part}/{parts}"
        self.command = [
            "compute-sanitizer", "--tool", tool, "--error-exitcode", str(REPORTED), "--show-backtrace", "device",
            "--launch-timeout", "300", "--port", str(port), *TOOLS[tool], sys.executable,
            str(ROOT / "bench/device_check.py"), "--small", "--seed", "1", "--only", group, "--part", f"{part}/{parts}"]
        self.reports, self.ended, self.text, self.began, self.seconds = 0, "not run", "", 0.0, 0.0

    def run(self, limit):
        self.began = time.time()
        if self.began >= limit:
            return self
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", start_new_session=True,
                              env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}) as p:
            running.add(p.pid)
            try:
                self.text, code = p.communicate(timeout=limit - self.began)[0], p.returncode
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                self.text, code = p.communicate()[0], None
            running.remove(p.pid)
        self.seconds = time.time() - self.began
        found = [int(a or b) for a, b in SUMMARY.findall(self.text)]
        self.reports = max(sum(found) - len(THEIRS.findall(self.text)), 0)
        is_clean = len(found) == 1 and self.reports == 0 and code in (0, REPORTED) and "\n0 mismatches\n" in self.text
        self.ended = "not finished" if code is None else "ok" if is_clean else "FAILED" if found else "no summary"
        return self


def plan(tools, groups):
    jobs = []
    for tool in tools:
        for group in groups:
            parts = GROUPS[group][tool != "racecheck"]
            jobs += [Job(tool, group, i + 1, parts, 30000 + 16 * (len(jobs) + i)) for i in range(parts)]
    return jobs


def run_all(jobs, at_once, limit, log):
    """Runs them, in the order they stand in; a line for each that did not go well. False: it was interrupted."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(job.run, limit) for job in jobs]):
                job = done.result()
                log.write(f"#### {job.name}: {job.ended}, {job.seconds:.0f} s: {' '.join(job.command)}\n{job.text}\n")
                log.flush()
                if job.ended != "ok":
                    kernels = ", ".join(sorted(set(WHERE.findall(job.text)))[:4])
                    print(f"{job.name}: {job.ended}, {job.reports} reports, {job.seconds:.0f} s  {kernels}", flush=True)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pool.shutdown(wait=False, cancel_futures=True)
            for pid in list(running):
                os.killpg(pid, signal.SIGKILL)
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="?", default=",".join(TOOLS), help="with commas between")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of checks, with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--limit", type=float, default=600, help="of all of it, in seconds")
    parser.add_argument("--log", default="build/sanitize.log", help="what the sanitizers print")
    args = parser.parse_args()
    for given, known in ((args.tools, TOOLS), (args.only, GROUPS)):
        for word in given.split(","):
            if word not in known:
                parser.error(f"{word}: none of {', '.join(known)}")
    if shutil.which("compute-sanitizer") is None:
        sys.exit("there is no compute-sanitizer here; it comes with the CUDA toolkit")
    pathlib.Path(args.log).parent.mkdir(parents=True, exist_ok=True)
    tools, groups, began = args.tools.split(","), args.only.split(","), time.time()
    jobs = plan(tools, groups)
    with open(args.log, "w", encoding="utf-8") as log:
        if not run_all(jobs, args.jobs, began + args.limit, log):
            return 130
    print(f"{'tool':10} {'groups':>9} {'processes':>10} {'reports':>8} {'longest':>8} {'until':>6}")
    for tool in tools:
        mine = [job for job in jobs if job.tool == tool]
        ends = [job for job in mine if job.ended == "ok"]
        whole = set(groups) - {job.group for job in mine if job.ended != "ok"}
        longest = max(mine, key=lambda job: job.seconds)
        print(f"{tool:10} {len(whole):3} of {len(groups):2} {len(ends):4} of {len(mine):2} "
              f"{sum(job.reports for job in mine):8} {longest.seconds:6.0f} s "
              f"{max(job.began + job.seconds for job in mine) - began:4.0f} s  {longest.group}")
    failed = sum(job.ended != "ok" for job in jobs)
    print(f"{failed} of {len(jobs)} processes failed or did not finish; see {args.log}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
