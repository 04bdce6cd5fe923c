"""Inspect's own tests of a sandbox environment, as its documentation has providers run them."""

from inspect_ai.util._sandbox.self_check import *  # noqa: F403
