"""The limits of the wire, each with its reason (`docs/protocol.md`, "Limits")."""

MAX_LINE_BYTES = 64 << 20
"""A newline-framed message, without the newline. The limit of the reference on stdio."""

MAX_FRAME_BYTES = 16 << 20
"""One WebSocket frame from a client. The limit of the reference."""

MAX_MESSAGE_BYTES = 64 << 20
"""A WebSocket message from a client, in fragments. The limit of the reference."""

MAX_WEBSOCKET_REPLY_BYTES = 64 << 20
"""A WebSocket message to a client. Above it the stock client reconnects for ever."""

WEBSOCKET_FRAGMENT_BYTES = 1 << 20
"""Larger messages go out in fragments: the stock client drops a frame above 16 MiB."""

MAX_JSON_DEPTH = 127
MAX_JSON_VALUES = 262_144
MAX_JSON_MEMBERS = 131_072
"""Members of all objects of a message. Building one object of so many blocks the server for 25 ms; no
command takes a larger environment."""

MAX_JSON_QUOTES = 2 * (MAX_JSON_VALUES + MAX_JSON_MEMBERS)
"""Quotation marks in a message, those within strings included: two for each possible string."""

MAX_JSON_BARE_BYTES = 16 << 20
"""Bytes of a message outside of strings: 64 for each value."""

MAX_CHUNK_BYTES = 1 << 20
"""Raw bytes in one output chunk. The stock client fails the call above it."""

MAX_PAGE_BYTES = 8 << 20
"""Raw bytes in the answer to a `process/read` without `maxBytes`: the stock client asks once,
and never takes a message above 64 MiB."""

MAX_FILLED_GAP = 10_000
"""Up to so many evicted chunks are sent one by one, empty: the stock client stops for ever at a gap in the
numbers. A larger gap is sent as one chunk."""

REMEMBERED_WRITE_IDS = 4096

MAX_TERMINAL_LINE_BYTES = 4095
"""Of an input line without its end, in canonical mode: the kernel drops the rest (N_TTY_BUF_SIZE)."""

MAX_TIMEOUT_MS = 2**53
"""Of a process: the largest integer that is exact in every JSON reader."""

MAX_READ_FILE_BYTES = 512 << 20
MAX_BLOCK_BYTES = 1 << 20
MAX_FILE_OFFSET = 2**63 - 1
MAX_FILE_HANDLES = 128
MAX_HANDLE_ID_BYTES = 32

MAX_EDITS = 10_000
"""In one `fs/applyEdits`: far more than a patch has, and within the JSON values of a message."""

MAX_BATCH_ENTRIES = 1000
MAX_BATCH_BYTES = 4 << 20
"""Of one `fs/putFiles` or `fs/getFiles`: its files, and the bytes of their contents. The server decodes so
much within some milliseconds."""

MAX_WALK_DEPTH = 64
MAX_WALK_DIRECTORIES = 10_000
MAX_WALK_ENTRIES = 50_000
MAX_WATCHED_PATHS = 64

LARGEST_PORT = 65535

MAX_PORT_STREAMS = 256
"""Open streams to ports of a session: each is a process. A browser has six connections to a server."""

MAX_WATCHES = 32
"""Watches of a session (`fs/watch`). Each is a program, and an inotify instance, of which a user has 128."""

MAX_WATCH_ID_BYTES = 64

MAX_WATCH_CHANGES = 10_000
"""In one `fs/watchRead`: some milliseconds of encoding."""

MAX_WATCH_PAGE_BYTES = 4 << 20
"""Of the changes in one `fs/watchRead` or `fs/changed`, in JSON."""

MAX_WATCH_LOG_CHANGES, MAX_WATCH_LOG_BYTES = 65_536, 16 << 20
"""Kept changes of a watch, so that a client may be away for a while."""

MAX_POLLED_ENTRIES = 50_000
"""Below the root of a watch on a network mount, which is listed every two seconds."""

MAX_OPEN_SEARCHES = 4
"""Of a session; a further one ends one of them."""

MAX_FOUND = 100_000
"""Matches or files in a page of a search."""

MAX_SEARCH_PAGE_BYTES = 16 << 20
"""Of a page of a search: the stock client takes no larger frame in one piece."""

MAX_SEARCH_MS = 600_000
MAX_CONTEXT_LINES = 20
MAX_UNREAD = 20
MAX_PATTERN_CHARACTERS = 1 << 16
"""Of the text of a search: the kernel takes 128 KiB for an argument of a program."""

MAX_GLOBS, MAX_GLOB_CHARACTERS = 100, 4096
MAX_NAME_CHARACTERS = 255
MAX_CURSOR_CHARACTERS = MAX_SEARCH_ID_CHARACTERS = 64

TTY_ROWS, TTY_COLUMNS = 24, 80
MAX_TERMINAL_SIDE = 65_535
"""Rows or columns of a terminal: the kernel has 16 bits for each."""

MIN_MEMORY_LIMIT, MAX_MEMORY_LIMIT = 1 << 20, 2**53
"""Of a process, in bytes. With less hardly a program starts."""

MAX_PIDS_LIMIT, MAX_CPU_PERCENT, MAX_IO_WEIGHT = 2**22, 100_000, 10_000
"""The kernel has no more pids, and no larger weights; a thousand processors."""

MAX_HTTP_BODY_BYTES = 47 << 20
"""Raw bytes of a response in one reply: as base64 with its head it fits into a message of 64 MiB, the
largest that the stock client takes. Larger ones can be streamed."""

MAX_HTTP_HELD_BYTES = 256 << 20
"""Raw bytes of whole responses that the daemon holds, for all connections together."""

MAX_HTTP_RUNNING = 64
"""Concurrent requests of a connection; further ones wait."""

MAX_HTTP_WAITING = 448
"""Waiting requests of a connection. Few enough that its messages are still read, so that a client with too
many can terminate a process."""

MAX_HTTP_STREAMS = 128
"""Streamed bodies of a connection. Each holds a connection to a server, often for hours."""

MAX_HTTP_EXCHANGES = 1024
"""Connections to servers, for all clients together: most descriptors are reserved for processes."""

MAX_ASKING_NAME_BYTES = 256
"""Of the name of a process whose network proxy asks the client."""

MAX_HOST_BYTES = 253
"""Of the name of a host, as in DNS."""

MAX_DECISION_REASON_BYTES = 1024
"""Of a client's reason for a network decision."""
