"""Runs a classic BPF seccomp program the way the kernel does, so that any architecture's filter can be asked anything.

Refuses what `bpf_check_classic` and `seccomp_check_filter` refuse: unknown instructions, loads that are not aligned
words of seccomp_data, jumps out of the program, a program without a return at its end. Called by the filter's tests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

LOAD_WORD, AND_K, JUMP, JEQ, JGT, JGE, JSET, RETURN_K = 0x20, 0x54, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06
SECCOMP_DATA_BYTES = 64


@dataclass(frozen=True)
class Instruction:
    code: int
    true: int
    false: int
    value: int


class InvalidProgram(Exception):
    """The kernel would refuse to install it."""


class Program:
    """A checked program. `instructions` counts towards the kernel's 4096."""

    def __init__(self, text: bytes) -> None:
        if len(text) % 8 or not text:
            raise InvalidProgram(f"{len(text)} bytes are no array of struct sock_filter")
        self.instructions = [Instruction(*fields) for fields in struct.iter_unpack("<HBBI", text)]
        for place, step in enumerate(self.instructions):
            self._check(place, step)
        if self.instructions[-1].code != RETURN_K:
            raise InvalidProgram("the last instruction is no return")

    def _check(self, place: int, step: Instruction) -> None:
        if step.code == LOAD_WORD:
            if step.value % 4 or step.value >= SECCOMP_DATA_BYTES:
                raise InvalidProgram(f"{place}: load from {step.value}")
        elif step.code == JUMP:
            self._check_target(place, step.value)
        elif step.code in (JEQ, JGT, JGE, JSET):
            self._check_target(place, step.true)
            self._check_target(place, step.false)
        elif step.code not in (AND_K, RETURN_K):
            raise InvalidProgram(f"{place}: instruction {step.code:#x}")

    def _check_target(self, place: int, distance: int) -> None:
        if place + 1 + distance >= len(self.instructions):
            raise InvalidProgram(f"{place}: jump by {distance} leaves the program")

    def run(self, audit_arch: int, number: int, *arguments: int) -> tuple[int, int]:
        """(action, instructions executed) for one call. `number` and `arguments` are taken as unsigned."""
        padded = (list(arguments) + [0] * 6)[:6]
        data = struct.pack(
            "<IIQ6Q", number & 0xFFFFFFFF, audit_arch, 0x7F0000001234, *(a & (2**64 - 1) for a in padded)
        )
        accumulator, place, executed = 0, 0, 0
        while True:
            step = self.instructions[place]
            place += 1
            executed += 1
            if step.code == RETURN_K:
                return step.value, executed
            if step.code == LOAD_WORD:
                accumulator = int(struct.unpack_from("<I", data, step.value)[0])
            elif step.code == AND_K:
                accumulator &= step.value
            elif step.code == JUMP:
                place += step.value
            else:
                place += step.true if _holds(step, accumulator) else step.false


def _holds(step: Instruction, accumulator: int) -> bool:
    if step.code == JEQ:
        return accumulator == step.value
    if step.code == JGT:
        return accumulator > step.value
    if step.code == JGE:
        return accumulator >= step.value
    return bool(accumulator & step.value)
