"""An interpreter of classic BPF, for the seccomp filters of our assembler."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

_JUMPS: dict[int, Callable[[int, int], bool]] = {
    0x15: lambda word, operand: word == operand,
    0x45: lambda word, operand: bool(word & operand),
}


def run(program: bytes, number: int, architecture: int, arguments: Sequence[int] = ()) -> int:
    """The filter's answer to a call: a `SECCOMP_RET_…` value."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number & 0xFFFF_FFFF, architecture, 0, *[each % 2**64 for each in padded])
    instructions = list(struct.iter_unpack("=HBBI", program))
    word, position = 0, 0
    while True:
        code, when_true, when_false, operand = instructions[position]
        position += 1
        if code == 0x20:
            (word,) = struct.unpack_from("<I", call, operand)
        elif code == 0x54:
            word &= operand
        elif code in _JUMPS:
            position += when_true if _JUMPS[code](word, operand) else when_false
        elif code == 0x06:
            return int(operand)
        else:
            raise AssertionError(f"instruction {code:#x} is none that a filter of ours has")
