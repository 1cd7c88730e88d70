"""A terminal to run the program on: a pseudo-terminal, what was written to it, and keys."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from cli_models import quern_bin

CTRL_A, CTRL_C, CTRL_D, CTRL_E, CTRL_K, CTRL_U, CTRL_W, CTRL_Y = (chr(ord(c) & 31) for c in "acdekuwy")
UP, DOWN, RIGHT, LEFT, HOME, END, DELETE = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F", "\x1b[3~"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, *args, cols=80, rows=24, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            full = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm", "LANG": "C.UTF-8",
                    "ASAN_OPTIONS": "detect_leaks=1:exitcode=99", **(env or {})}
            os.execvpe(quern_bin(), [quern_bin(), *map(str, args)], full)
        self.resize(cols, rows)
        self.raw = ""
        self.mark = 0
        self.code = None

    def resize(self, cols, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def _pump(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return None
        self.raw += data.decode(errors="replace")
        return True if data else None

    def expect(self, text, seconds=20):
        """Wait until text (or a pattern) appears behind what was expected before; escape sequences do not count."""
        pattern = text if isinstance(text, re.Pattern) else re.compile(re.escape(text))
        end = time.monotonic() + seconds
        while True:
            found = pattern.search(ESCAPES.sub("", self.raw), self.mark)
            if found:
                self.mark = found.end()
                return found
            if time.monotonic() > end or self._pump(0.1) is None:
                raise AssertionError(f"no {pattern.pattern!r} at the end of {self.raw[-2000:]!r}")

    def send(self, keys):
        os.write(self.fd, keys.encode() if isinstance(keys, str) else keys)

    def typed(self, keys, shows):
        self.send(keys)
        return self.expect(shows)

    def close(self, seconds=20):
        """Wait for the end of the program; its exit code."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._pump(0.1) is not None:
            pass
        for _ in range(100):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the program did not end")
