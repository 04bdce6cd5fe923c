"""An environment of mini-swe-agent at an execserver daemon.

    environment:
      environment_class: execclient.integrations.mini_swe_agent.ExecServerEnvironment
      cwd: /home/me/project

Needs the extra: `pip install "execclient[mini_swe_agent]"`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import weakref
from typing import Any

try:
    from minisweagent.exceptions import Submitted
    from minisweagent.utils.serialize import recursive_merge
except ImportError as error:
    raise ImportError(
        "execclient.integrations.mini_swe_agent needs mini-swe-agent: "
        'pip install "execclient[mini_swe_agent]"'
    ) from error

from pydantic import BaseModel, ConfigDict, Field

from execclient import arguments
from execclient.environment_policy import Inherit
from execclient.errors import ExecServerError, ExecutorClosed, OutputGap, SessionLost
from execclient.govern.sandbox import WorkspaceWrite
from execclient.integrations.settings import SandboxSetting
from execclient.results import RunResult
from execclient.shells import stderr_to_stdout
from execclient.sync import connect

__all__ = ["ExecServerEnvironment", "ExecServerEnvironmentConfig"]

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of the output of a command that ends the task."""

_UNAME = "for field in s n r v m p; do uname -$field 2>/dev/null || echo; done"
"""The fields of `platform.uname_result`, in order."""


class ExecServerEnvironmentConfig(BaseModel):
    """The settings of an `ExecServerEnvironment`: keyword arguments, or the table `environment` in YAML."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = None
    """The daemon, as for `execclient.connect`; by default `EXECSERVER_URL`, else the default socket."""
    cwd: str = ""
    """The working directory of commands, and the workspace of the sandbox; by default the daemon's."""
    env: dict[str, str] = {}
    """Variables that are added to the inherited ones."""
    inherit: Inherit = "core"
    """The variables of the daemon that commands inherit: all, the core (HOME, PATH, …) or none."""
    timeout: int = Field(30, gt=0)
    """Seconds until a command is killed, with all its descendants."""
    interpreter: list[str] = Field(["bash", "-c"], min_length=1)
    """The program that runs a command; the command is its last argument."""
    sandbox: SandboxSetting = WorkspaceWrite()


class ExecServerEnvironment:
    """Runs the commands of an agent at an execserver daemon, each in a sandbox.

    The environment has a session at the daemon, which ends with `cleanup`, with the garbage collection of the
    environment, or with the program. If the program is killed, the daemon ends the session by itself.

    Args:
        config_class: the class of the settings.
        **kwargs: the settings, those of `ExecServerEnvironmentConfig`.

    Raises:
        ConnectionFailed: there is no daemon; the message says how to start one.
        ExecServerError, ValueError: the daemon has no such working directory, or cannot confine.
    """

    def __init__(
        self,
        *,
        config_class: type[ExecServerEnvironmentConfig] = ExecServerEnvironmentConfig,
        **kwargs: Any,
    ) -> None:
        self.config = config_class(**kwargs)
        self._executor = connect(self.config.url, client_name="mini-swe-agent")
        self._close = weakref.finalize(self, self._executor.close)
        try:
            # Of one workspace, whatever directory a call names.
            workspace = os.path.join(self._executor.cwd, self.config.cwd)
            self._sandbox = arguments.sandbox(self.config.sandbox, workspace)
            # Now and not in `get_template_vars`: a sandbox that does not work is the user's business.
            uname = self._run(["sh", "-c", _UNAME], "", self.config.timeout, check=True).text.splitlines()
        except BaseException:
            self.cleanup()
            raise
        self._machine = dict(zip(platform.uname_result._fields, uname, strict=True))

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the command of an action.

        Args:
            action: has the `command`.
            cwd: the working directory; that of the settings by default, which stays the workspace.
            timeout: seconds; those of the settings by default.

        Returns:
            The `output` (both streams, in order) and the `returncode`. If the command reached its time limit
            or could not be started, the `returncode` is -1, `exception_info` has the reason, and `output`
            everything that it wrote before.

        Raises:
            Submitted: the command has ended the task.
            SessionLost, ExecutorClosed: the session has ended; make another environment.
        """
        command = action.get("command", "")
        limit = timeout or self.config.timeout
        try:
            result = self._run([*self.config.interpreter, command], cwd, limit)
        except (SessionLost, ExecutorClosed):
            raise
        except OutputGap as gap:
            return _failed(gap, "" if gap.result is None else gap.result.text)
        except (ExecServerError, OSError, TypeError, ValueError) as error:
            return _failed(error, "")
        if result.timed_out:
            return _failed(subprocess.TimeoutExpired(command, limit), result.text)
        _check_submitted(result)
        return {"output": result.text, "returncode": result.exit_code, "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The settings, and `system`, `node`, `release`, `version` and `machine` of the daemon's machine."""
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), self._machine, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """The settings, for the file of the trajectory."""
        kind = type(self)
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": f"{kind.__module__}.{kind.__name__}",
                }
            }
        }

    def cleanup(self) -> None:
        """End the session, and kill everything that commands left running. May be called again."""
        self._close()

    def _run(self, argv: list[str], cwd: str, limit: int, *, check: bool = False) -> RunResult:
        return self._executor.run(
            stderr_to_stdout(argv),
            cwd=cwd or self.config.cwd or None,
            env=self.config.env,
            inherit=self.config.inherit,
            timeout=limit,
            sandbox=self._sandbox,
            check=check,
        )


def _failed(error: Exception, output: str) -> dict[str, Any]:
    """The result of a command without an exit code of its own, as the project's environments have it."""
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _check_submitted(result: RunResult) -> None:
    first, *rest = result.text.lstrip().splitlines(keepends=True) or [""]
    if result.exit_code == 0 and first.strip() == _SUBMIT:
        submission = "".join(rest)
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
