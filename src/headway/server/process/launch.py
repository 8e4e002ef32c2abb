"""The engine's process from outside: its birth and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

__all__ = ["FACTORY", "EngineProcess"]

FACTORY = "headway.llm:build_engine"
_STANDARD_ERROR = 2


class EngineProcess:
    """A fresh interpreter that makes an engine, and our end of the socket to it. It imports what it
    needs and waits for `Start`.

    It is no fork of this process, which has threads, and it is not in the terminal's group: Ctrl-C
    is for the server alone. What it has to say to a person goes to standard error.

    Args:
        factory: what makes the engine, as module:function. It is imported at once.
        log_format: of what it logs, as `configure_logs` has it.
    """

    def __init__(self, factory: str = FACTORY, *, log_format: str = "text") -> None:
        self._factory = factory
        self._log_format = log_format
        self.sock, theirs = socket.socketpair()
        # Modules come from where ours do, and not from the working directory (-P).
        paths = [os.path.abspath(path) for path in sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "headway.server.process.child"),
                    *(str(theirs.fileno()), factory, log_format),
                ],
                stdin=subprocess.DEVNULL,
                stdout=_STANDARD_ERROR,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    def another(self) -> EngineProcess:
        """A new one like this one."""
        return EngineProcess(self._factory, log_format=self._log_format)

    @property
    def pid(self) -> int:
        return self._process.pid

    def dump(self) -> None:
        """Has it write to standard error where its threads are, if it still can."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> str:
        """How it ended; kills it after the timeout."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
