"""bench/cuda-ncu beside an ncu that is made up: what it is asked, and the table that is made of what it writes. The
form of the latter is Nsight Compute 2025.3's."""
import os
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench" / "cuda_ncu.py"
HEAD = ('"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
        '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
        '"Rule Description"')


def line(i, kernel, name, unit, value, rule=""):
    return (f'"{i}","1","python3","h","{kernel}","1","13","(384, 1, 1)","(132, 1, 1)","0","9.0","S","{name}","{unit}",'
            f'"{value}","{rule}","",""')


SAID = ["==PROF== Connected to process 1", HEAD,
        line(0, "several_kernel", "Duration", "ns", "4,321,000"),
        line(0, "several_kernel", "Memory Throughput", "%", "91.25"),
        line(0, "several_kernel", "Memory Throughput", "byte/second", "4,012,345,678,901"),
        line(0, "several_kernel", "DRAM Throughput", "%", "83.50"),
        line(0, "several_kernel", "", "", "", "SOLBottleneck"),
        line(1, "void norm_kernel<1>(float *)", "Duration", "ns", "2500"),
        line(1, "void norm_kernel<1>(float *)", "L2 Hit Rate", "%", "n/a")]


def run(folder, said, status=0):
    """The table, and how the program ended."""
    ncu = folder / "ncu"
    ncu.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[sys.argv.index('--log-file') + 1], 'w').write("
                   f"{chr(10).join(said)!r})\nprint(sys.argv[-2:])\nsys.exit({status})\n")
    ncu.chmod(0o755)
    done = subprocess.run([sys.executable, BENCH, "decode 32"], capture_output=True, text=True, timeout=60, check=False,
                          env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"})
    return done.stdout, done.returncode


def test_kernels_are_shown_in_their_order_with_what_ncu_counted(tmp_path):
    text, ended = run(tmp_path, SAID)
    several, norm = (row.split() for row in text.splitlines()[-2:])
    assert ended == 0 and "decode 32, bf16" in text
    assert several == ["several_kernel", "132x384", "4321.0", "4012.3", "83.5"]
    assert norm == ["norm_kernel", "132x384", "2.5"]


def test_a_row_without_counters_fails_and_says_what_ncu_said(tmp_path):
    for said, status in (([*SAID[:2], "==ERROR== no counters"], 0), (SAID, 9)):
        text, ended = run(tmp_path, said, status)
        assert ended == 1 and f"decode 32, bf16: ended with {status}" in text
        assert "['--step', 'decode 32, bf16']" in text
    assert "==ERROR== no counters" in run(tmp_path, [*SAID[:2], "==ERROR== no counters"])[0]
