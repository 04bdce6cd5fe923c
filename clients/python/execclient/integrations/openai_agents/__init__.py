"""The OpenAI Agents SDK: a sandbox client for a `SandboxAgent`, and tools for other agents.

    client = ExecServerSandboxClient()
    await Runner.run(agent, "…", run_config=RunConfig(sandbox=SandboxRunConfig(client=client)))

    shell = ShellTool(executor=ExecServerShell(executor))
    editor = ApplyPatchTool(editor=ExecServerEditor(executor))

The SDK has no other interface for a sandbox than the hooks of `BaseSandboxSession`, some of whose names begin
with an underscore. `session.py` overrides the ones that the SDK's own sandboxes override.
"""

from __future__ import annotations

try:
    import agents.sandbox  # noqa: F401
except ImportError as error:
    raise ImportError(
        "execclient.integrations.openai_agents needs the OpenAI Agents SDK: "
        'pip install "execclient[openai_agents]"'
    ) from error

from execclient.integrations.openai_agents.client import ExecServerSandboxClient
from execclient.integrations.openai_agents.session import ExecServerSandboxSession
from execclient.integrations.openai_agents.state import (
    ExecServerSandboxClientOptions,
    ExecServerSandboxSessionState,
)
from execclient.integrations.openai_agents.tools import ExecServerEditor, ExecServerShell

__all__ = [
    "ExecServerEditor",
    "ExecServerSandboxClient",
    "ExecServerSandboxClientOptions",
    "ExecServerSandboxSession",
    "ExecServerSandboxSessionState",
    "ExecServerShell",
]
