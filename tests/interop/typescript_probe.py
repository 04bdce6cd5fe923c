"""The shared conformance probe through the TypeScript client.

`python -m tests.interop.typescript_probe SHARED TRANSPORT OPTIONS…` runs the probe on the driver
(`clients/typescript/tests/driver.ts`), which carries out each request by the client over the transport:
`stdio`, `unix` or `ws`. A case that fails is an error, unless `NOT_APPLICABLE` has it; and one that is there,
and passes, is one too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).parents[2] / "clients" / "typescript" / "build" / "driver.js"

NOT_APPLICABLE = {
    "the messages of the client are valid JSON-RPC: it sends none that is malformed, or of another form": (
        "envelope.batch_is_answered_once_and_not_executed",
        "envelope.batch_rejected",
        "envelope.duplicate_member_rejected",
        "envelope.float_id_rejected",
        "envelope.malformed_json_answered_with_id_minus_one",
        "envelope.non_string_method_rejected",
        "envelope.null_id_rejected",
        "envelope.object_without_method_or_result_rejected",
        "envelope.positional_params_accepted",
        "envelope.scalar_top_level_rejected",
        "envelope.trace_of_wrong_type_is_a_parse_error",
        "envelope.two_values_in_one_message_rejected",
        "envelope.unit_params_accept_absent_null_and_empty_object_only",
    ),
    "the client numbers its requests itself, below 2^53": ("envelope.signed_64_bit_ids",),
    "the client sends no notification and no response that the server does not expect": (
        "envelope.request_method_as_notification_is_fatal",
        "envelope.unexpected_error_is_fatal",
        "envelope.unexpected_notification_is_fatal",
        "envelope.unexpected_response_is_fatal",
    ),
    "the client makes the handshake itself, once a connection, before any other request": (
        "envelope.method_table",
        "handshake.initialize_params_checked",
        "handshake.methods_refused_before_initialize",
        "handshake.methods_refused_before_initialized",
        "handshake.params_are_decoded_before_the_handshake_check",
    ),
    "the stdio, the flags and the exit status are the driver's, not the daemon's": (
        "concurrency.zero_is_a_usage_error",
        "stdio.invalid_utf8_ends_the_connection",
        "stdio.listen_stdio_url_form",
        "stdio.ws_auth_flags_refused_with_stdio",
    ),
    "the probe connects to a WebSocket of the server; the client's own tests resume and authenticate": (
        "session.detached_session_and_exited_process_are_kept_80_seconds",
        "session.file_handles_do_not_survive",
        "session.initialized_is_needed_after_resume",
        "session.resume_continues_live_notifications",
        "session.session_survives_a_protocol_violation",
        "ws.auth.capability_token",
        "ws.auth.capability_token_by_digest",
        "ws.auth.signed_bearer_token",
        "ws.fatal_error_closes_the_socket",
        "ws.http_endpoints",
        "ws.ping_is_answered",
        "ws.sessions_have_separate_process_ids",
        "ws.sigterm_exits_zero",
        "ws.text_and_binary_frames",
        "ws.upgrade_only_on_root",
    ),
}
"""The cases that do not apply, by the reason."""

VERDICT = re.compile(r"(PASS|FAIL) (\S+) \(")


def main(argv: list[str]) -> int:
    """Run the probe; 0 if exactly the cases that do not apply have failed."""
    shared, transport, *options = argv
    probe = Path(shared) / "conformance" / "probe.py"
    if not probe.is_file():
        sys.stderr.write(f"{probe} is missing: set SHARED to the shared folder\n")
        return 1
    command = [sys.executable, str(probe), "--server", f"node {DRIVER} {transport} serve", *options]
    expected = {case for cases in NOT_APPLICABLE.values() for case in cases}
    counts = {"PASS": 0, "FAIL": 0}
    wrong: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if found := VERDICT.match(line):
                verdict, case = found.groups()
                counts[verdict] += 1
                if (verdict == "FAIL") != (case in expected):
                    wrong.append(line)
    sys.stdout.write(f"{transport}: {counts['PASS']} passed, {counts['FAIL']} do not apply or failed\n")
    sys.stdout.writelines(f"unexpected: {line}" for line in wrong)
    return 1 if wrong or not counts["PASS"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
