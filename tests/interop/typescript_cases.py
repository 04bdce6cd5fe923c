"""A plugin of pytest: the project's conformance cases through the TypeScript client.

    EXECSERVER_TEST_COMMAND="node clients/typescript/build/driver.js unix serve" \
        pytest -p tests.interop.typescript_cases tests/conformance

picks the cases that run over stdio in the Codex dialect, which the driver serves. A case of `NOT_APPLICABLE`
must fail; one that is there and passes is an error.
"""

from __future__ import annotations

import os

import pytest

NOT_APPLICABLE: dict[str, tuple[str, ...]] = {
    "the bytes and the form of the messages are the driver's; the client sends none that is malformed": (
        "test_bad_input.py::test_floods_are_answered[stdio-_flood_of_errors]",
        "test_envelope.py::test_fatal_input_ends_the_connection[",
        "test_envelope.py::test_positional_parameters[",
        "test_envelope.py::test_text_that_is_no_json[",
        "test_transports.py::test_both_spellings_of_stdio[stdio://]",
        "test_transports.py::test_endless_line_ends_the_connection_at_the_limit[",
        "test_transports.py::test_line_that_is_not_utf8_ends_the_connection[",
        "test_transports.py::test_longest_line[",
    ),
    "the client makes the handshake itself, once a connection, before any other request": (
        "test_envelope.py::test_initialized_before_initialize_ends_the_connection[",
        "test_handshake.py::test_failed_initialize_may_be_repeated[",
        "test_handshake.py::test_methods_need_initialized[",
    ),
    "JavaScript rounds integers above 2^53, which times in nanoseconds are": (
        "test_batches.py::test_modes_and_times_of_new_and_replaced_files[",
        "test_batches.py::test_paths_are_described_and_small_files_read[",
        "test_extensions.py::test_metadata_has_modes_and_exact_times[",
    ),
    "the driver's own connection does not end with that of the client, which tries to resume its session": (
        "test_session_end.py::test_a_child_whose_leader_has_exited_ends_with_the_session[",
        "test_session_end.py::test_a_session_without_processes_ends_at_once[",
    ),
    "the client reads on while the reader of the driver stalls, and loses nothing": (
        "test_output.py::test_reader_that_stalls_holds_nothing_back_and_hears_of_the_gap[",
    ),
}
"""The cases that do not apply, by the reason; the name of a case may begin with what is here."""

OVER_UNIX: dict[str, tuple[str, ...]] = {
    "the socket proves whose client it is": (
        "test_other_sessions.py::test_without_proof_other_sessions_are_out_of_reach[",
    ),
}
"""More of them over a Unix socket."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the driver does not serve, and expect the failure of what does not apply."""
    left_out = [item for item in items if _transport(item) != "stdio"]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _transport(item) == "stdio"]
    over_unix = " unix " in os.environ["EXECSERVER_TEST_COMMAND"]
    for reason, cases in (NOT_APPLICABLE | OVER_UNIX if over_unix else NOT_APPLICABLE).items():
        for item in items:
            if item.nodeid.removeprefix("tests/conformance/").startswith(cases):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _transport(item: pytest.Item) -> object:
    parameters = getattr(item, "callspec", None)
    return parameters and parameters.params.get("transport")
