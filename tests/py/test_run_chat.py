"""quern run on a real terminal: typing, editing, history, pastes, Ctrl-C, Ctrl-D, resizing, commands."""
import json
import os
import re
import signal
import termios
import time

import pytest

from chat_terminal import (CTRL_A, CTRL_C, CTRL_D, CTRL_E, CTRL_K, CTRL_U, CTRL_W, CTRL_Y, DELETE, END, HOME, LEFT,
                           RIGHT, UP, DOWN, Terminal)

SPEED = re.compile(r"\[(\d+) tokens, .*?\]")


@pytest.fixture
def chat():
    t = Terminal("run", "tiny", "--seed", "1", "-n", "8")
    t.expect("Ctrl-D leaves")
    t.expect("> ")
    yield t
    if t.code is None:
        os.kill(t.pid, signal.SIGKILL)
        os.waitpid(t.pid, 0)


def saved(t, path):
    t.typed(f"/save {path}\r", "written to")
    return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]


def test_a_conversation_is_kept_and_ctrl_d_leaves(chat, tmp_path):
    chat.typed("Good morrow\r", SPEED)
    chat.typed("And you?\r", SPEED)
    talk = saved(chat, tmp_path / "a.json")
    assert [role for role, _ in talk] == ["user", "assistant", "user", "assistant"]
    assert talk[0][1] == "Good morrow" and talk[2][1] == "And you?" and talk[1][1]
    chat.send(CTRL_D)
    assert chat.close() == 0


def test_what_was_computed_is_not_computed_again(chat):
    chat.typed("Good morrow\r", SPEED)
    found = chat.typed("And you?\r", re.compile(r"prompt (\d+) tokens \((\d+) known\)"))
    assert int(found[2]) > int(found[1]) // 2


@pytest.mark.parametrize("keys, text", [
    ("abc" + LEFT + "X", "abXc"),
    ("abc" + HOME + "X" + END + "Y", "XabcY"),
    ("abc" + CTRL_A + "X" + CTRL_E + "Y", "XabcY"),
    ("one two" + CTRL_W + "three", "one three"),
    ("one two" + CTRL_A + RIGHT * 3 + CTRL_K + "!", "one!"),
    ("one two" + CTRL_U + "x" + CTRL_Y, "xone two"),
    ("abc\x7f\x7fZ", "aZ"),
    ("abc" + LEFT * 2 + DELETE, "ac"),
    ("na\u00efve caf\u00e9" + "\x7f" + LEFT * 7 + "\x7f", "n\u00efve caf"),
    ("\u65e5\u672c\u8a9e" + LEFT + "\x7f" + "X", "\u65e5X\u8a9e"),
    ("e\u0301x" + LEFT * 2 + DELETE, "x"),
    ("a\\\rb", "a\nb"),
    ("a\x1b\rb", "a\nb"),
    ("\x1b[200~line one\r\nline two\rthree\x1b[201~", "line one\nline two\nthree"),
    ("\x1b[200~evil\x1b[2J\x07end\x1b[201~", "evil[2Jend"),
    ("word" + "\x1bb" + "X", "Xword"),
    ("bad \xff".encode("latin-1"), "bad \ufffd"),
], ids=lambda v: repr(v)[:40])
def test_editing(chat, tmp_path, keys, text):
    chat.send(keys)
    time.sleep(0.15)
    chat.typed("\r", SPEED)
    assert saved(chat, tmp_path / "e.json")[0] == ("user", text)


def test_arrows_bring_back_what_was_typed(chat, tmp_path):
    chat.typed("first\r", SPEED)
    chat.typed("second\r", SPEED)
    chat.send("draft" + UP + UP + DOWN + "!" + "\r")
    chat.expect(SPEED)
    assert [c for r, c in saved(chat, tmp_path / "h.json") if r == "user"] == ["first", "second", "second!"]


def test_up_moves_inside_a_message_of_several_lines(chat, tmp_path):
    chat.typed("old\r", SPEED)
    chat.send("ab\x1b\rcd" + UP + "X" + DOWN + "Y\r")
    chat.expect(SPEED)
    assert saved(chat, tmp_path / "u.json")[2] == ("user", "abX\ncdY")


def test_ctrl_c_stops_the_answer_and_not_the_program(chat, tmp_path):
    chat.typed("/set max-tokens 0\r", "max-tokens is 0")
    chat.typed("/set ignore-eos true\r", "ignore-eos is true")
    chat.send("Speak on\r")
    chat.expect(re.compile(r"Speak on\s+\S+"))
    chat.send(CTRL_C)
    assert int(chat.expect(re.compile(r"\[(\d+) tokens, .*stopped\]"))[1]) < 480
    talk = saved(chat, tmp_path / "c.json")
    assert [role for role, _ in talk] == ["user", "assistant"]
    chat.send("/quit\r")
    assert chat.close() == 0


def test_ctrl_c_while_typing_clears_the_line(chat, tmp_path):
    chat.send("never mind" + CTRL_C)
    chat.send("this one\r")
    chat.expect(SPEED)
    assert saved(chat, tmp_path / "t.json")[0] == ("user", "this one")
    chat.expect("> ")
    chat.typed(CTRL_C, "Ctrl-D or /quit leaves")


def test_typing_during_an_answer_waits(chat, tmp_path):
    chat.send("one\rtwo\r")
    chat.expect(SPEED)
    chat.expect(SPEED)
    assert [c for r, c in saved(chat, tmp_path / "w.json") if r == "user"] == ["one", "two"]


def test_commands(chat, tmp_path):
    chat.typed("/help\r", "/clear")
    chat.typed("/sys\tBe brief\r".replace("\t", "\t "), "the system message is set")
    chat.typed("hello\r", SPEED)
    assert saved(chat, tmp_path / "s.json")[0] == ("system", "Be brief")
    chat.typed("/retry\r", SPEED)
    assert len(saved(chat, tmp_path / "s.json")) == 3
    chat.typed("/clear\r", "forgotten")
    assert saved(chat, tmp_path / "s.json") == [("system", "Be brief")]
    chat.typed("/set temp 0.25\r", "temperature is 0.25")
    chat.typed("/set\r", "temperature 0.25")
    chat.typed("/set temp hot\r", "'hot' is not a number")
    chat.typed("/set json true\r", "cannot be set here")
    chat.typed("/nonsense\r", "no command '/nonsense'")
    chat.typed(f"/save {tmp_path}/no/x.json\r", "quern: ")
    chat.typed("/retry\r", "nothing to answer again")
    chat.typed("/usr/bin is a folder\r", SPEED)
    chat.send("/quit\r")
    assert chat.close() == 0


def test_a_long_line_and_resizing(chat, tmp_path):
    text = " ".join(f"word{i}" for i in range(60))
    chat.send(text[:200])
    time.sleep(0.2)
    chat.resize(31, 7)
    time.sleep(0.2)
    chat.send(text[200:])
    time.sleep(0.2)
    chat.resize(120, 40)
    chat.typed("\r", SPEED)
    assert saved(chat, tmp_path / "l.json")[0] == ("user", text)


def test_old_turns_are_dropped_with_a_notice(chat):
    chat.typed("/set max-tokens 40\r", "is 40")
    for i in range(12):
        chat.send(f"Tell me of the king and of his sons, the {i}th time, at length and with every name\r")
        if "messages are forgotten" in chat.expect(re.compile(r"messages are forgotten|\[\d+ tokens, "))[0]:
            break
    else:
        raise AssertionError("512 tokens were never full")
    chat.expect(SPEED)
    chat.send(CTRL_D)
    assert chat.close() == 0


def test_a_message_longer_than_the_context_is_refused_and_the_talk_goes_on(chat, tmp_path):
    chat.send("\x1b[200~" + "word " * 1500 + "\x1b[201~\r")
    chat.expect("leaves no room for an answer")
    chat.typed("short\r", SPEED)
    assert saved(chat, tmp_path / "x.json")[0] == ("user", "short")


def test_the_terminal_is_put_back(chat):
    before = termios.tcgetattr(chat.fd)
    assert not before[3] & termios.ICANON
    os.kill(chat.pid, signal.SIGTERM)
    assert chat.close() == -signal.SIGTERM


def test_plain_reading_on_a_dumb_terminal(tmp_path):
    t = Terminal("run", "tiny", "--seed", "1", "-n", "4", env={"TERM": "dumb"})
    t.expect("> ")
    t.typed("hello\n", SPEED)
    t.send(CTRL_D)
    assert t.close() == 0
    assert "\x1b" not in t.raw
