"""Where the reference server is: OpenAI Codex's own binary, installed by npm."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# npm nests the platform package differently from version to version; the binary's own folder does not change.
PATTERN = ".interop/**/node_modules/@openai/codex*/vendor/*/bin/codex"


class ReferenceMissingError(Exception):
    """The reference is not installed; the message says what to do."""


def find_reference(root: Path = ROOT) -> Path:
    """The reference's native binary (the npm launcher script would add node's start-up time).

    Raises:
        ReferenceMissingError: it is not there.
    """
    found = sorted(path for path in root.glob(PATTERN) if path.is_file())
    if not found:
        raise ReferenceMissingError(
            f"no reference server under {root / '.interop'}: run `make interop-setup`, "
            "or name one with --reference 'COMMAND {listen}'"
        )
    return found[-1]


def reference_command(root: Path = ROOT) -> str:
    """The reference's command line with `{listen}` in it."""
    return f"{find_reference(root)} exec-server --listen {{listen}}"
