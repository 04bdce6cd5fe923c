"""A runtime and a deployment of SWE-ReX at an execserver daemon.

    deployment = ExecServerDeployment(cwd="/home/me/project")
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    print((await deployment.runtime.run_in_session(BashAction(command="make test"))).output)
    await deployment.stop()

Needs the extra: `pip install "execclient[swe_rex]"`.
"""

from __future__ import annotations

try:
    import swerex  # noqa: F401
except ImportError as error:
    raise ImportError(
        'execclient.integrations.swe_rex needs SWE-ReX: pip install "execclient[swe_rex]"'
    ) from error

from execclient.integrations.swe_rex.deployment import ExecServerDeployment, ExecServerDeploymentConfig
from execclient.integrations.swe_rex.runtime import ExecServerRuntime, ExecServerRuntimeConfig

__all__ = [
    "ExecServerDeployment",
    "ExecServerDeploymentConfig",
    "ExecServerRuntime",
    "ExecServerRuntimeConfig",
]
