"""An assembler for the part of classic BPF that a seccomp filter needs. Pure.

Rules of this module:

1. A program reads the call with `load`, compares, and ends every path with `leave`.
2. Jumps name labels and go only forward, so a program always ends.
3. A program that the kernel would refuse or misinterpret (a jump that is too far for its 8 bits) is an error.
"""

from __future__ import annotations

import struct

import msgspec

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_FURTHEST = 255
"""The two distances of a conditional jump have 8 bits each."""

_LONGEST = 4096
"""BPF_MAXINSNS, the kernel's limit."""

_CALL_SIZE = 64
"""Bytes of `struct seccomp_data`."""

_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter


class AssemblyError(Exception):
    """The program is invalid: a mistake in this package, not in a request."""


class _Instruction(msgspec.Struct):
    code: int
    operand: int
    when_true: str | None = None
    when_false: str | None = None


class Assembler:
    """Instructions in the order in which they were added."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def load(self, offset: int) -> None:
        """Load the 32-bit word at a byte offset of `struct seccomp_data`.

        Raises:
            AssemblyError: the word is not aligned or not in the structure.
        """
        if offset % 4 or not 0 <= offset <= _CALL_SIZE - 4:
            raise AssemblyError(f"a filter cannot load the word at offset {offset}")
        self._add(_LOAD_WORD, offset)

    def mask(self, bits: int) -> None:
        """Keep only these bits of the word."""
        self._add(_AND, bits)

    def if_equal(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump by comparison with the word; without a label, continue with the next instruction."""
        self._add(_JUMP_EQUAL, value, then, otherwise)

    def if_any_bit(self, bits: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump by whether the word has one of these bits."""
        self._add(_JUMP_ANY_BIT, bits, then, otherwise)

    def leave(self, action: int) -> None:
        """End with an action (`SECCOMP_RET_…`)."""
        self._add(_RETURN, action)

    def label(self, name: str) -> None:
        """Name the next instruction.

        Raises:
            AssemblyError: the name is taken.
        """
        if name in self._labels:
            raise AssemblyError(f"label {name!r} stands twice")
        self._labels[name] = len(self._instructions)

    def assemble(self) -> bytes:
        """The program as an array of `struct sock_filter`.

        Raises:
            AssemblyError: a label is missing, behind the jump, or too far; the program does not end with an
                action, or is too long.
        """
        if not self._instructions or self._instructions[-1].code != _RETURN:
            raise AssemblyError("a filter must end with an action")
        if len(self._instructions) > _LONGEST:
            raise AssemblyError(
                f"a filter has at most {_LONGEST} instructions, not {len(self._instructions)}"
            )
        return b"".join(
            _INSTRUCTION.pack(
                each.code,
                self._distance(position, each.when_true),
                self._distance(position, each.when_false),
                each.operand,
            )
            for position, each in enumerate(self._instructions)
        )

    def _add(
        self, code: int, operand: int, when_true: str | None = None, when_false: str | None = None
    ) -> None:
        if not 0 <= operand <= 0xFFFF_FFFF:
            raise AssemblyError(f"operand {operand} does not fit into 32 bits")
        self._instructions.append(_Instruction(code, operand, when_true, when_false))

    def _distance(self, position: int, label: str | None) -> int:
        if label is None:
            return 0
        if label not in self._labels:
            raise AssemblyError(f"label {label!r} is nowhere")
        distance = self._labels[label] - position - 1
        if distance < 0:
            raise AssemblyError(f"label {label!r} lies behind a jump to it")
        if distance > _FURTHEST:
            raise AssemblyError(f"label {label!r} is {distance} instructions away, {_FURTHEST} are possible")
        if self._labels[label] >= len(self._instructions):
            raise AssemblyError(f"label {label!r} stands at the end, where no instruction follows")
        return distance
