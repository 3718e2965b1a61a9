"""A terminal for the client to run in: a pty whose other end the test holds."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from guest import PATIENCE


class Terminal:
    """Runs a command with a pty as its controlling terminal and stdio.

    stdin/stdout/stderr can be replaced one by one. `output` collects what was printed.
    """

    def __init__(self, argv, env, rows=24, cols=80, **stdio):
        self.master, self.slave = pty.openpty()
        self.resize(rows, cols)
        self.cooked = termios.tcgetattr(self.slave)
        self.output = b""
        fds = {k: stdio.get(k, self.slave) for k in ("stdin", "stdout", "stderr")}
        slave = self.slave

        def own_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.p = subprocess.Popen(argv, env=env, preexec_fn=own_terminal, close_fds=True, **fds)

    def resize(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, data):
        os.write(self.master, data)

    def read_until(self, text, timeout=PATIENCE):
        """Reads until the output contains text; returns what came before, and drops both."""
        deadline = time.monotonic() + timeout
        while text not in self.output:
            left = deadline - time.monotonic()
            assert left > 0 and self.fill(left), f"{text!r} did not come: {self.output!r}"
        before, self.output = self.output.split(text, 1)
        return before

    def fill(self, timeout):
        """Reads once; False at the end or when nothing comes."""
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            data = b""
        self.output += data
        return bool(data)

    def wait(self, timeout=PATIENCE):
        """Reads on until the client has ended; returns its exit code."""
        deadline = time.monotonic() + timeout
        while self.p.poll() is None:
            assert time.monotonic() < deadline, f"did not end: {self.output!r}"
            self.fill(0.02)
        while self.fill(0):
            pass
        return self.p.returncode

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO)

    def is_restored(self):
        return termios.tcgetattr(self.slave) == self.cooked

    def hang_up(self):
        """Closes the terminal, as when its window is closed."""
        for fd in ("slave", "master"):
            if getattr(self, fd) is not None:
                os.close(getattr(self, fd))
                setattr(self, fd, None)

    def close(self):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGKILL)
        self.p.wait()
        self.hang_up()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
