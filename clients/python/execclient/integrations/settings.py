"""Settings that several integrations read with pydantic."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from execclient.govern.sandbox import SandboxPolicy, sandbox_policy

__all__ = ["SandboxSetting"]


def _policy(value: Any) -> SandboxPolicy | None:
    return None if value is None else sandbox_policy(value)


def _policy_json(policy: SandboxPolicy | None) -> dict[str, Any] | None:
    return None if policy is None else policy.to_json()


SandboxSetting = Annotated[
    SandboxPolicy | None, PlainValidator(_policy), PlainSerializer(_policy_json, return_type=Any)
]
"""A policy of `execclient`, or as in a configuration: `read-only`, or a table with the `type`, such as
`{type: workspace-write, network_access: true}`. None for no sandbox."""
