/**
 * The errors of this package. Each has a stable `code`.
 *
 *     ExecServerError              exec_server_error
 *     ├── UnsupportedUrl           unsupported_url      the client does not support this URL
 *     ├── ConnectionFailed         connection_failed    the connection failed
 *     │   ├── DaemonNotRunning     daemon_not_running   no server is listening
 *     │   ├── UntrustedServer      untrusted_server     the socket belongs to another user
 *     │   ├── AccessDenied         access_denied        the server refuses the token, or the client
 *     │   └── InsecureToken        insecure_token       a token would cross a network unencrypted
 *     ├── ConnectionLost           connection_lost      an established connection was lost
 *     │   ├── OutcomeUnknown       outcome_unknown      a call may or may not have been carried out
 *     │   └── SessionLost          session_lost         the session could not be resumed
 *     ├── ExecutorClosed           executor_closed      a call after `close`
 *     ├── ProtocolFault            protocol_fault       the server sent an invalid message
 *     ├── RequestTooLarge          request_too_large    the request does not fit one message
 *     ├── CallTimeout              call_timeout         no response within the limit
 *     ├── Unsupported              unsupported          this server cannot do that; nothing was sent
 *     ├── NoSuchProcess            no_such_process      the daemon does not know the process
 *     ├── StdinUnavailable         stdin_unavailable    the process has no standard input
 *     └── CallFailed               call_failed          an error response; `wireCode` has its number
 *         ├── Refused              refused              -32600  the server refuses the request
 *         │   ├── LineTooLong      line_too_long        -32600  a terminal would cut a line of input
 *         │   └── SandboxRequired  sandbox_required     -32600  the daemon requires a sandbox
 *         ├── UnknownMethod        unknown_method       -32601
 *         ├── InvalidParams        invalid_params       -32602
 *         ├── SystemFailure        system_failure       -32603  a failed system call, a failed start
 *         ├── NotFound             not_found            -32004  the path or handle does not exist
 *         ├── SessionAttached      session_attached     -32010  the session has another connection
 *         └── ExecutorDraining     executor_draining    -32011  the executor opens no new sessions
 *
 * The numbers: `docs/protocol.md`, "Error codes". The names in `wireName`: the same page, J7.
 */

import type { ErrorData } from "./wire.js";

/** The base of all errors of this package. */
export class ExecServerError extends Error {
  /** A name for programs, which never changes its meaning. */
  readonly code: string = "exec_server_error";

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The client does not support the URL, or an option does not go with it. */
export class UnsupportedUrl extends ExecServerError {
  override readonly code: string = "unsupported_url";
}

/** The connection failed; the message says why. */
export class ConnectionFailed extends ExecServerError {
  override readonly code: string = "connection_failed";
}

/** No server is listening at the URL. */
export class DaemonNotRunning extends ConnectionFailed {
  override readonly code: string = "daemon_not_running";
}

/** The Unix socket belongs neither to the user of this process nor to root. No data was sent. */
export class UntrustedServer extends ConnectionFailed {
  override readonly code: string = "untrusted_server";
}

/** A WebSocket server refused the client: 401 for the token, 403 for the origin or the address of the client. */
export class AccessDenied extends ConnectionFailed {
  override readonly code: string = "access_denied";

  constructor(message: string, /** Of the HTTP response. */ readonly status: number) {
    super(message);
  }
}

/** The token would cross a network unencrypted. No data was sent. */
export class InsecureToken extends ConnectionFailed {
  override readonly code: string = "insecure_token";
}

/** The connection ended. */
export class ConnectionLost extends ExecServerError {
  override readonly code: string = "connection_lost";

  constructor(message: string, /** Whether the request may have been sent. */ readonly sent = true, options?: ErrorOptions) {
    super(message, options);
  }
}

/** The connection was lost before the response, and the request must not be sent twice. */
export class OutcomeUnknown extends ConnectionLost {
  override readonly code: string = "outcome_unknown";
}

/** The session could not be resumed: its processes are gone or not accessible. Connect anew. */
export class SessionLost extends ConnectionLost {
  override readonly code: string = "session_lost";
}

/** The executor was closed before the call, or during it. */
export class ExecutorClosed extends ExecServerError {
  override readonly code: string = "executor_closed";
}

/** The server sent a message that violates the protocol. */
export class ProtocolFault extends ExecServerError {
  override readonly code: string = "protocol_fault";
}

/** The request exceeds the 64 MiB of one message; no data was sent. */
export class RequestTooLarge extends ExecServerError {
  override readonly code: string = "request_too_large";
}

/** No response within the limit. The request may still be executed. */
export class CallTimeout extends ExecServerError {
  override readonly code: string = "call_timeout";

  constructor(readonly method: string, /** The limit. */ readonly milliseconds: number) {
    super(`${method}: no response within ${milliseconds / 1000} s`);
  }
}

/** The server does not serve an extension that the call needs. No request was sent. */
export class Unsupported extends ExecServerError {
  override readonly code: string = "unsupported";

  constructor(/** Its name in `Executor.capabilities`. */ readonly extension: string) {
    super(`the server does not serve ${extension}: it is an older execserver`);
  }
}

/** The daemon does not know the process: it never ran, or the daemon has forgotten it after its end. */
export class NoSuchProcess extends ExecServerError {
  override readonly code: string = "no_such_process";
}

/** The process has no standard input, or it was closed. */
export class StdinUnavailable extends ExecServerError {
  override readonly code: string = "stdin_unavailable";
}

/** The server responded with an error. */
export class CallFailed extends ExecServerError {
  override readonly code: string = "call_failed";

  constructor(
    /** Of the wire. */ readonly method: string,
    /** The number in the response. */ readonly wireCode: number,
    /** The text in the response. */ readonly wireMessage: string,
    /** The details in the response. */ readonly data?: ErrorData,
  ) {
    const text = data?.reason === undefined ? wireMessage : `${wireMessage}: ${data.reason}`;
    super(`${method}: ${text} (${wireCode})`);
  }

  /** The finer name of `wireCode`, such as `sandbox_required`. */
  get wireName(): string | undefined {
    return this.data?.code;
  }

  /** The number of the failed system call, with the numbers of Linux; undefined if no system call failed. */
  get errno(): number | undefined {
    const found = /\(os error (\d+)\)$/.exec(this.wireMessage);
    return found === null ? undefined : Number(found[1]);
  }
}

/** The server understands the request and refuses it. */
export class Refused extends CallFailed {
  override readonly code: string = "refused";
}

/** A terminal in canonical mode would drop a part of an input line of more than 4,095 bytes. Nothing was written. */
export class LineTooLong extends Refused {
  override readonly code: string = "line_too_long";
}

/** The daemon has the setting `require_sandbox`, and the request has no sandbox that limits files. */
export class SandboxRequired extends Refused {
  override readonly code: string = "sandbox_required";
}

/** The server has no such method. */
export class UnknownMethod extends CallFailed {
  override readonly code: string = "unknown_method";
}

/** The server could not decode the parameters; `data.field` names the field. */
export class InvalidParams extends CallFailed {
  override readonly code: string = "invalid_params";
}

/** A system call failed at the server; also every failed start. */
export class SystemFailure extends CallFailed {
  override readonly code: string = "system_failure";
}

/** The path or the handle does not exist. */
export class NotFound extends CallFailed {
  override readonly code: string = "not_found";
}

/** Another connection is attached to the session. */
export class SessionAttached extends CallFailed {
  override readonly code: string = "session_attached";
}

/** The executor drains: it opens no new sessions. */
export class ExecutorDraining extends CallFailed {
  override readonly code: string = "executor_draining";
}
