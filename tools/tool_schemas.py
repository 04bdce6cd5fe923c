"""Write the schemas of the tools that `execclient` gives to models, a file for each tool and form.

`python -m tools.tool_schemas [--check] FOLDER`: with `--check` nothing is written, and the exit status says
whether the files are what would be written. All fields are in them, also those that a host must turn on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from execclient.tools.specs import FORMS, all_specs
from tools.wire_docs.generated import split_check, write_or_check


def files(folder: Path) -> dict[Path, str]:
    """The text of each file."""
    return {
        folder / f"{name}.{form}.json": json.dumps(spec.form(form), indent=2, ensure_ascii=False) + "\n"
        for name, spec in all_specs(request_rule=True).items()
        for form in FORMS
    }


def main(argv: list[str]) -> int:
    """Write or check the files."""
    arguments = split_check(argv, "tools.tool_schemas [--check] FOLDER", 1)
    if arguments is None:
        return 2
    (folder,), check = arguments
    return write_or_check(files(folder), "the tools' arguments", check=check, others=folder.glob("*.json"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
