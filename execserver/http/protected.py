"""Variables of the daemon's environment that no header may carry away. Pure.

A client that may name any server could send itself what the daemon was entrusted with. What no child
sees either (`processes/child_environment.py`) is not repeated here.
"""

from __future__ import annotations

_NAMES = frozenset(
    {
        # The reference's list: credentials of the executor itself and of the services behind it.
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "CODEX_ACCESS_TOKEN",
        "CODEX_API_KEY",
        "CODEX_CONNECTORS_TOKEN",
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "CODEX_GUARDIAN_DECISIONS_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "OPENAI_API_KEY",
        "OPENAI_FEDERATION_RULE_ID",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    }
)


def is_protected(name: str) -> bool:
    """Whether a header may not use this variable, however it is spelled."""
    return name.upper() in _NAMES
