"""The command line as its user meets it: help, mistakes, exit codes, the config file, manual page and completions."""
import json
import os
import re
import shutil
import subprocess

import pytest

from cli_models import REPO, quern, quern_bin


def fails(result, code, *parts):
    """One line on standard error that says it all, nothing on standard output, the exit code."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("quern: error: ") and result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


def verbs():
    listing = quern("--help").stdout.split("Verbs:\n")[1].split("\n\n")[0]
    return re.findall(r"^  ([a-z]+)", listing, re.M)


def options(verb):
    return sorted(set(re.findall(r"^ {2}(?:-\w,|   ) --([a-z0-9-]+)", quern(verb, "--help").stdout, re.M)))


def test_help_lists_verbs_and_every_verb_explains_itself():
    r = quern("--help")
    assert r.returncode == 0 and r.stderr == ""
    assert r.stdout == quern("help").stdout == quern("-h").stdout
    assert {"help", "version", "completion", "inspect"} <= set(verbs())
    for verb in verbs():
        r = quern(verb, "--help")
        assert r.returncode == 0 and r.stdout.startswith(f"Usage: quern {verb}")
        assert r.stdout == quern("help", verb).stdout
        assert "--config FILE" in r.stdout


def test_help_fits_eighty_columns():
    for verb in ["", *verbs()]:
        text = quern("help", *([verb] if verb else [])).stdout
        assert max(len(line) for line in text.splitlines()) <= 80, verb


def test_help_wraps_to_the_terminal(tmp_path):
    import fcntl, pty, struct, termios
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    p = subprocess.Popen([quern_bin(), "inspect", "--help"], stdout=child)
    os.close(child)
    text = b""
    try:
        while chunk := os.read(parent, 65536):
            text += chunk
    except OSError:
        pass
    os.close(parent)
    assert p.wait() == 0
    lines = text.decode().replace("\r", "").splitlines()
    assert 40 < max(len(line) for line in lines if "|" not in line) <= 50


def test_version_is_the_projects():
    version = re.search(r"project\(quern VERSION (\S+)", (REPO / "CMakeLists.txt").read_text()).group(1)
    assert quern("--version").stdout == quern("version").stdout == quern("-V").stdout == f"quern {version}\n"
    assert json.loads(quern("version", "--json").stdout) == {"version": version}


def test_usage_mistakes_exit_2_with_one_line():
    fails(quern(), 2, "no verb given", "quern --help")
    fails(quern("inspct"), 2, "unknown verb 'inspct' (did you mean 'inspect'?)")
    fails(quern("frobnicate"), 2, "unknown verb 'frobnicate'")
    fails(quern("inspect", "--tensros"), 2, "'--tensros' (did you mean '--tensors'?)")
    fails(quern("inspect", "--max-model-length", "3"), 2, "did you mean '--max-model-len'?")
    fails(quern("inspect", "--max-num-seqs", "0"), 2, "--max-num-seqs: '0' is not between 1 and 65536",
          "quern inspect --help")
    fails(quern("inspect", "--kv-cache-dtype=int3"), 2, "'int3' is not one of auto,")
    fails(quern("inspect", "--memory=lots"), 2, "'lots' is not a size")
    fails(quern("version", "--tensors"), 2, "--tensors is not for 'version'; it is for: inspect")
    fails(quern("version", "extra"), 2, "'version' takes no argument 'extra'")
    fails(quern("help", "inspct"), 2, "unknown verb 'inspct' (did you mean 'inspect'?)")
    fails(quern("completion", "fish"), 2, "'fish' is neither bash nor zsh")
    fails(quern("completion"), 2, "'completion' needs bash|zsh")
    fails(quern("--fault", "disk:1", "version"), 2, "disk:1")


def test_help_of_a_negated_switch_says_what_the_negation_does():
    text = " ".join(quern("tokenize", "--help").stdout.split())
    assert "--no-special Without the tokens that the tokenizer puts around a text" in text


def test_tokenize_without_a_model_means_the_default_one(tmp_path):
    r = quern("tokenize", "--cache-dir", tmp_path, input="x")
    fails(r, 1, "the default model (smollm2-135m-instruct) is not in", "quern pull")


def test_help_and_table_agree_on_which_verbs_there_are():
    for verb in ["serve", "run", "score", "bench", "plan", "top", "pull", "list", "rm", "tokenize"]:
        r = quern(verb, "--help")
        assert r.returncode == (0 if verb in verbs() else 2)
        assert ("unknown verb" in r.stderr) == (verb not in verbs())


def test_typed_text_cannot_talk_to_the_terminal():
    for word in ["\x1b[31mred", "--\x1b]0;x\x07", "a\nb"]:
        r = quern(word)
        assert r.returncode == 2 and "\x1b" not in r.stderr and r.stderr.count("\n") == 1


def test_source_place_shows_only_at_debug():
    quiet, loud = quern("inspect", "/nonexistent"), quern("--log-level", "debug", "inspect", "/nonexistent")
    assert quiet.returncode == loud.returncode == 1
    assert ".c:" not in quiet.stderr
    assert re.search(r"\[src/\w+/\w+\.c:\d+\]$", loud.stderr, re.M)


def test_errors_as_json_lines():
    r = quern("--log-format", "json", "inspect", "/nonexistent/\"x\"")
    line = json.loads(r.stderr)
    assert r.returncode == 1 and line["level"] == "error" and line["code"] == "NOT_FOUND"
    assert "/nonexistent/" in line["message"] and "at" not in line
    line = json.loads(quern("--log-format=json", "--log-level=debug", "--nope").stderr.splitlines()[0])
    assert "level" in line
    debug = [json.loads(s) for s in quern("--log-format=json", "--log-level=debug", "version").stderr.splitlines()]
    assert debug[-1]["event"] == "verb done" and debug[-1]["ms"] >= 0


def test_output_errors_are_reported():
    for args in (["--help"], ["help", "--man"], ["version"], ["completion", "bash"]):
        with open("/dev/full", "w") as full:
            r = subprocess.run([quern_bin(), *args], stdout=full, stderr=subprocess.PIPE, text=True)
        assert r.returncode == 1 and "cannot write standard output: No space left" in r.stderr
    r = subprocess.run([quern_bin(), "version"], stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.close(1))
    assert r.returncode == 1 and "cannot write standard output" in r.stderr


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    r = subprocess.run([quern_bin(), "help", "--man"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert r.returncode == 0 and r.stderr == ""


def test_config_file_sets_options_and_the_command_line_wins(tmp_path):
    conf = tmp_path / "quern.conf"
    conf.write_text("# all verbs\nlog-format = json\n\n[version]\njson = true\n\n[inspect]\nmax_model_len = 7\n")
    assert json.loads(quern("--config", conf, "version").stdout)["version"]
    assert quern("version", "--config", conf, "--no-json").stdout.startswith("quern ")
    assert json.loads(quern("--config", conf, "inspect", "/nonexistent").stderr)["code"] == "NOT_FOUND"
    r = quern("--config", conf, "--log-format=text", "inspect", "/nonexistent")
    assert r.stderr.startswith("quern: error: ")
    conf.write_bytes(b"\xef\xbb\xbfjson = true\r\n")
    assert json.loads(quern("--config", conf, "version").stdout)["version"]


@pytest.mark.parametrize("text,part", [
    ("jsno = true\n", "line 1: unknown option '--jsno' (did you mean '--json'?)"),
    ("\n[version]\njson = 1\n", "line 3: option --json: '1' is not true or false"),
    ("[inspect]\nmax-num-seqs = many\n", "line 2: option --max-num-seqs: 'many' is not a whole number"),
    ("[versoin]\n", "line 1: section [versoin] is not a verb (did you mean [version]?)"),
    ("help = true\n", "belongs on the command line"),
    ("fault = alloc:1\n", "belongs on the command line"),
    ("json\n", "is not 'name = value'"),
    ("json = true\njson = false\n", "line 2: option --json was already set in line 1"),
])
def test_config_file_mistakes_name_file_and_line(tmp_path, text, part):
    conf = tmp_path / "quern.conf"
    conf.write_text(text)
    fails(quern("--config", conf, "version"), 2, str(conf), part)


def test_config_file_that_cannot_be_read(tmp_path):
    fails(quern("--config", tmp_path / "none", "version"), 2, "none", "No such file")
    fails(quern("--config", tmp_path, "version"), 2, "is a directory")
    os.mkfifo(tmp_path / "fifo")
    fails(quern("--config", tmp_path / "fifo", "version"), 2, "is a FIFO")
    (tmp_path / "huge").write_bytes(b"#" * (2 << 20))
    fails(quern("--config", tmp_path / "huge", "version"), 2, "the limit is 1048576")
    conf = tmp_path / "quern.conf"
    conf.write_text("json = true\n")
    fails(quern("--fault", "sys:1", "--config", conf, "version"), 1, "Input/output error")
    fails(quern("--fault", "alloc:1", "--config", conf, "version"), 1, "no memory")


def test_environment_does_not_set_options():
    env = {"QUERN_JSON": "1", "JSON": "true", "QUERN_LOG_LEVEL": "loud", "COLUMNS": "20"}
    assert quern("version", env=env).stdout == quern("version").stdout
    assert quern("--help", env=env).stdout == quern("--help").stdout


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_manual_page_is_clean_roff_and_complete(tmp_path):
    page = tmp_path / "quern.1"
    page.write_text(quern("help", "--man").stdout)
    r = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-c", str(page)], capture_output=True, text=True)
    assert r.returncode == 0 and r.stderr == ""
    if shutil.which("man"):
        m = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True,
                           env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C.UTF-8"})
        assert m.returncode == 0 and m.stderr == ""
    text = re.sub(r"\x1b\[\d+m|.\x08", "", r.stdout)
    for verb in verbs():
        assert f"quern {verb}" in text
        for name in options(verb):
            assert f"--{name}" in text, (verb, name)


def bash_completes(tmp_path, *words):
    script = tmp_path / "quern.bash"
    script.write_text(quern("completion", "bash").stdout)
    quoted = " ".join(f"'{w}'" for w in words)
    r = subprocess.run(["bash", "--norc", "-c", f"source {script}; COMP_WORDS=({quoted}); "
                        f"COMP_CWORD={len(words) - 1}; _quern; printf '%s\\n' \"${{COMPREPLY[@]}}\""],
                       capture_output=True, text=True, cwd=tmp_path)
    assert r.stderr == ""
    return r.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completion_knows_verbs_options_values_and_files(tmp_path):
    (tmp_path / "model.gguf").touch()
    assert set(bash_completes(tmp_path, "quern", "")) == {*verbs(), "--help", "--version"}
    assert bash_completes(tmp_path, "quern", "insp") == ["inspect"]
    assert bash_completes(tmp_path, "quern", "inspect", "--tens") == ["--tensors"]
    assert bash_completes(tmp_path, "quern", "version", "--tens") == []
    assert bash_completes(tmp_path, "quern", "inspect", "--kv-cache-dtype", "q") == ["q8_0", "q4_0"]
    assert bash_completes(tmp_path, "quern", "--log-level", "debug", "inspect", "mod") == ["model.gguf"]
    assert bash_completes(tmp_path, "quern", "inspect", "--kv-cache-dtype", "=", "b") == ["bf16"]
    assert len(bash_completes(tmp_path, "quern", "inspect", "--kv-cache-dtype", "=")) == 7
    assert bash_completes(tmp_path, "quern", "completion", "z") == ["zsh"]
    for verb in verbs():
        offered = {w.removeprefix("--no-").removeprefix("--") for w in bash_completes(tmp_path, "quern", verb, "--")}
        assert offered == {name.removeprefix("no-") for name in options(verb)}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completion_parses_and_completes(tmp_path):
    script = tmp_path / "_quern"
    script.write_text(quern("completion", "zsh").stdout)
    assert subprocess.run(["zsh", "-n", str(script)], capture_output=True, text=True).stderr == ""
    # A real completion needs a terminal; the specs are checked by the function that reads them, with a plain display.
    check = """
        _arguments() { print -rl -- "$@"; }
        _describe() { print -rl -- "${verbs[@]}"; }
        words=(quern $1 ''); CURRENT=3; [[ $1 == '' ]] && { words=(quern ''); CURRENT=2; }
        source %s
    """ % script
    def specs(verb):
        r = subprocess.run(["zsh", "-f", "-c", check, "zsh", verb], capture_output=True, text=True)
        assert r.stderr == ""
        return r.stdout
    for verb in verbs():
        assert f"{verb}:" in specs("")
        offered = set(re.findall(r"^--(?:no-)?([a-z0-9-]+)", specs(verb), re.M))
        assert offered == {name.removeprefix("no-") for name in options(verb)}
    assert "(auto f32 f16 bf16 fp8 q8_0 q4_0)" in specs("inspect")


def test_every_option_and_verb_is_in_the_documentation():
    text = (REPO / "docs" / "cli.md").read_text()
    for verb in verbs():
        assert f"quern {verb}" in text
        for name in options(verb):
            assert f"--{name}" in text, name


def test_the_documentation_gives_each_option_the_verbs_that_take_it():
    takers = {}
    for verb in verbs():
        for name in options(verb):
            takers.setdefault(name, set()).add(verb)
    checked = 0
    for line in (REPO / "docs" / "cli.md").read_text().splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        names = re.findall(r"--([a-z0-9-]+)", cells[1]) if len(cells) == 5 else []
        listed = set(re.findall(r"`([a-z]+)`", cells[2])) if len(cells) == 5 else set()
        for name in names:
            if name in takers and listed and "all that" not in cells[2]:
                assert listed == takers[name], name
                checked += 1
    assert checked > 20
