"""The deployment: connects a runtime to a daemon that runs already."""

from __future__ import annotations

import logging
from typing import Any, Literal, Self

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

from execclient.integrations.swe_rex.daemon import ExecServerRuntimeConfig
from execclient.integrations.swe_rex.runtime import ExecServerRuntime

__all__ = ["ExecServerDeployment", "ExecServerDeploymentConfig"]


class ExecServerDeploymentConfig(ExecServerRuntimeConfig):
    """The settings of an `ExecServerDeployment`: those of its runtime, and the `type` that all have."""

    type: Literal["execserver"] = "execserver"

    def get_deployment(self) -> AbstractDeployment:
        """A deployment with these settings."""
        return ExecServerDeployment.from_config(self)


class ExecServerDeployment(AbstractDeployment):
    """A runtime at an execserver daemon.

    Args:
        logger: as of other deployments.
        **kwargs: the settings, those of `ExecServerDeploymentConfig`.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any) -> None:
        self._config = ExecServerDeploymentConfig(**kwargs)
        self._hooks = CombinedDeploymentHook()
        self._runtime: ExecServerRuntime | None = None
        self.logger = logger or get_logger("rex-deploy")

    @classmethod
    def from_config(cls, config: ExecServerDeploymentConfig) -> Self:
        """A deployment with these settings."""
        return cls(**dict(config))

    def add_hook(self, hook: DeploymentHook) -> None:
        """Report the steps of `start` to a hook, too."""
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> ExecServerRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: `start` was not called, or `stop` was.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:  # noqa: ASYNC109 - theirs
        """Whether the deployment was started and the daemon answers."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="Runtime is None.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Connect to the daemon.

        Raises:
            DeploymentStartupError: it is not there, or cannot do what the settings say; the message says why.
        """
        self._hooks.on_custom_step("Connecting to the daemon")
        runtime = ExecServerRuntime(logger=self.logger, **self._config.model_dump(exclude={"type"}))
        alive = await runtime.is_alive()
        if not alive:
            await runtime.close()
            raise DeploymentStartupError(alive.message)
        self._runtime = runtime

    async def stop(self) -> None:
        """Close the runtime."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    def __del__(self) -> None:
        """Nothing: the base runs `stop` on an event loop, and the runtime ends its session by itself."""
