"""The assembler of seccomp filters."""

from __future__ import annotations

import struct

import pytest

from execserver.sandbox.seccomp_bpf import Assembler, AssemblyError
from tests.unit.sandbox import bpf


def test_instructions_have_the_kernels_layout() -> None:
    code = Assembler()
    code.load(4)
    code.if_equal(7, otherwise="no")
    code.leave(1)
    code.label("no")
    code.leave(2)
    assert code.assemble() == struct.pack(
        "=HBBIHBBIHBBIHBBI", 0x20, 0, 0, 4, 0x15, 0, 1, 7, 0x06, 0, 0, 1, 0x06, 0, 0, 2
    )


@pytest.mark.parametrize(("number", "expected"), [(1, 10), (2, 20), (4, 30), (6, 20), (8, 40), (0x11, 10)])
def test_jumps_go_where_their_labels_are(number: int, expected: int) -> None:
    code = Assembler()
    code.load(0)
    code.mask(0xF)
    code.if_equal(1, then="one")
    code.if_any_bit(2, then="two")
    code.if_equal(4, otherwise="rest")
    code.leave(30)
    code.label("one")
    code.leave(10)
    code.label("two")
    code.leave(20)
    code.label("rest")
    code.leave(40)
    assert bpf.run(code.assemble(), number, 0) == expected


def far(distance: int) -> Assembler:
    code = Assembler()
    code.load(0)
    code.if_equal(1, then="far")
    for _ in range(distance):
        code.mask(0xFFFF_FFFF)
    code.label("far")
    code.leave(5)
    return code


def test_the_furthest_jump_is_255_instructions() -> None:
    assert bpf.run(far(255).assemble(), 1, 0) == 5


def test_a_jump_that_is_too_far_is_an_error_and_not_another_jump() -> None:
    with pytest.raises(AssemblyError, match="'far' is 256 instructions away, 255 are possible"):
        far(256).assemble()


def test_a_program_that_is_too_long_is_an_error() -> None:
    code = Assembler()
    for _ in range(4097):
        code.leave(0)
    with pytest.raises(AssemblyError, match="at most 4096 instructions, not 4097"):
        code.assemble()


def test_a_jump_back_is_an_error() -> None:
    code = Assembler()
    code.label("start")
    code.load(0)
    code.if_equal(1, then="start")
    code.leave(0)
    with pytest.raises(AssemblyError, match="'start' lies behind"):
        code.assemble()


def test_a_label_that_is_nowhere_is_an_error() -> None:
    code = Assembler()
    code.if_equal(1, then="gone")
    code.leave(0)
    with pytest.raises(AssemblyError, match="'gone' is nowhere"):
        code.assemble()


def test_a_label_after_the_last_instruction_is_an_error() -> None:
    code = Assembler()
    code.if_equal(1, then="end")
    code.leave(0)
    code.label("end")
    with pytest.raises(AssemblyError, match="'end' stands at the end"):
        code.assemble()


def test_a_label_that_stands_twice_is_an_error() -> None:
    code = Assembler()
    code.label("a")
    with pytest.raises(AssemblyError, match="'a' stands twice"):
        code.label("a")


@pytest.mark.parametrize("offset", [-4, 2, 64, 61])
def test_a_word_outside_the_call_cannot_be_loaded(offset: int) -> None:
    with pytest.raises(AssemblyError, match=f"offset {offset}"):
        Assembler().load(offset)


@pytest.mark.parametrize("operand", [-1, 2**32])
def test_an_operand_has_32_bits(operand: int) -> None:
    with pytest.raises(AssemblyError, match="32 bits"):
        Assembler().mask(operand)


def test_a_program_must_end_with_an_action() -> None:
    code = Assembler()
    with pytest.raises(AssemblyError, match="must end with an action"):
        code.assemble()
    code.load(0)
    with pytest.raises(AssemblyError, match="must end with an action"):
        code.assemble()
