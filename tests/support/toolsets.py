"""What tests of the tools have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from execclient.govern.approvals import ApprovalRequest, Review
from execclient.govern.sandbox import WorkspaceWrite
from execclient.tools.toolset import Toolset

ONE_TRANSPORT = pytest.mark.parametrize("url", ["unix"], indirect=True)

INSIDE = WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir=True)
"""The folders of tests are below /tmp."""

Make = Callable[..., Toolset]


def shell_for(account_shell: str) -> str:
    """The shell that runs scripts: the one of the account, unless that is `nologin`, as of a service."""
    return "/bin/sh" if account_shell.endswith(("nologin", "/false")) else account_shell


class User:
    """Gives one answer to all questions, and keeps them."""

    def __init__(self, review: Review) -> None:
        self._review = review
        self.asked: list[ApprovalRequest] = []

    async def review(self, request: ApprovalRequest) -> Review:
        self.asked.append(request)
        return self._review
