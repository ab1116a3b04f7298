"""Counts the memory instructions that NVIDIA's compiler made of a kernel: "as compiled".

A compiler merges loads, splits stores and adds instructions that no source line shows. This module
runs the integer part of the machine code (indices, addresses, loop counters, predicates) for the
threads of some blocks side by side, one NumPy array a register, and counts each memory instruction
as the hardware does. Values from memory and floating-point results stay unknown; a matrix product
needs none of them to know where it goes and what it touches.

Threads that part meet again because those with the lowest instruction address always run first,
which is where the hardware's reconvergence points lie for structured code.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from . import result as metric
from .sampling import one_per_class, sample_grid, sampling_fault
from .sass import Instruction, Program
from .toolchain import EmulatorError
from .trips import REMEMBERED, GuessError, Trips, leading

WARP = 32
MASK = 0xFFFF_FFFF
PREDICATED_SHARED_LOADS = "smsp__inst_executed_op_shared_ld.sum"
"""Shared loads that a warp issues, including those which its predicate turns off in every lane."""
PREDICATED_SHARED_STORES = "smsp__inst_executed_op_shared_st.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
FFMA = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"
LOCAL_LOADS = "smsp__sass_inst_executed_op_local_ld.sum"
LOCAL_STORES = "smsp__sass_inst_executed_op_local_st.sum"
_ARRAY_SPACING = 1 << 36
_FIRST_ARRAY = 1 << 40
_MOST_STEPS = 20_000_000
_MOST_VALUES = 2**17
"""Threads times trips that run side by side: an array of them still fits a cache."""
_PATIENCE = 3
"""How often a loop may turn out to go on otherwise than its first trips before it is left alone."""
_JUMP = ("CALL", "REL", "NOINC")
"""A call that leaves no return address: a jump."""


@dataclass(frozen=True)
class Unknown:
    """A value that was not computed, and why."""

    why: str


Value = np.ndarray | Unknown
_State = tuple[dict[str, Any], dict[str, Any]]
"""Registers and predicates."""
_ZERO = np.array(0, np.int64)


def _never_set(name: str) -> Unknown:
    return Unknown(f"{name}, which was never set")


@dataclass
class CompiledCounts:
    """What the machine code of a launch asks of memory."""

    counters: dict[str, int]
    by_line: dict[tuple[int | None, str], int]
    """Warp-level instructions by (source line, opcode)."""
    sampled_blocks: int | None
    instructions: int = 0
    """Instructions that were interpreted."""


# --- costs of requests, for many warps at once ----------------------------------------------------


def distinct(values: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Distinct values among the active lanes of each row (rows x lanes)."""
    ordered = np.sort(np.where(active, values, np.iinfo(np.int64).max), axis=1)
    changes = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] != np.iinfo(np.int64).max)
    return np.asarray(changes.sum(axis=1) + active.any(axis=1))


@functools.lru_cache(maxsize=4096)
def _wavefronts(pattern: bytes, active: bytes, width: int, load: bool) -> tuple[int, int]:
    """Wavefronts of one shared request, and those which its width alone costs.

    The rules are those of workflow/emulator/runtime/counters.hpp, written again: tests hold the two
    against each other.
    """
    address = np.frombuffer(pattern, np.int64)
    lanes = np.flatnonzero(np.frombuffer(active, np.bool_))
    lanes_per_phase = 32 if width <= 4 else 128 // width
    if width > 4 and load:
        here = set(lanes.tolist())
        if any(
            all(address[lane] == address[lane ^ d] for lane in here if lane ^ d in here)
            for d in (1, 2)
        ):
            lanes_per_phase *= 2
    total = least = 0
    for first in range(0, WARP, lanes_per_phase):
        phase = lanes[(lanes >= first) & (lanes < first + lanes_per_phase)]
        if not len(phase):
            continue
        words = {int(address[lane]) // 4 + i for lane in phase for i in range(max(width // 4, 1))}
        total += max(Counter(word % 32 for word in words).values())
        least += 1
    return total, least


# --- operands, each text parsed once --------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """What an operand's text says: a register, a constant or a value, and what is done to it."""

    sign: str
    """``-``, ``~`` or nothing."""
    absolute: bool
    register: str | None
    constant: str | None
    value: Value
    """Of a register: what it holds before anything sets it."""


@functools.cache
def _operand(text: str, word: int) -> _Operand:
    negated = text[:1] in "-~" and len(text) > 1 and not text[1].isdigit()
    sign, body = (text[0], text[1:]) if negated else ("", text)
    absolute = body.startswith("|")
    body = body.strip("|").removesuffix(".64").removesuffix(".X4").removesuffix(".U32")
    register = constant = None
    value: Value = _ZERO
    if re.fullmatch(r"-?0x[0-9a-f]+|-?\d+", body):
        number = int(body, 0)
        value = np.array(((number >> 32) if word else number) & MASK, np.int64)
    elif body.startswith("c["):
        constant = body
    elif match := re.fullmatch(r"(U?R)(\d+)", body):
        register = f"{match[1]}{int(match[2]) + word}"
        value = _never_set(register)
    elif body not in ("RZ", "URZ", "SRZ"):
        value = Unknown(f"operand {text}")
    return _Operand(sign, absolute, register, constant, value)


@functools.cache
def _constant_offset(text: str) -> int | None:
    match = re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text)
    return int(match[1], 16) if match else None


@functools.cache
def _register_names(text: str, words: int) -> tuple[str, ...]:
    """The names of consecutive registers from the one in `text`; none if it is no register."""
    match = re.fullmatch(r"(U?R)(\d+)(?:\.64)?", text)
    return tuple(f"{match[1]}{int(match[2]) + word}" for word in range(words)) if match else ()


@functools.cache
def _is_predicate(text: str) -> bool:
    return re.fullmatch(r"!?U?P[0-9T]+", text) is not None


@functools.cache
def _address_terms(text: str) -> tuple[tuple[str, np.ndarray | None], ...]:
    """The terms that a memory operand adds up; those which are numbers with their value."""
    inner = re.findall(r"\[([^\[\]]*)\]", text)[-1]
    return tuple(
        (
            term,
            np.array(int(term, 16), np.int64) if re.fullmatch(r"-?0x[0-9a-f]+", term) else None,
        )
        for term in re.split(r"\+(?!-)|\+(?=-)", inner)
    )


# --- the interpreter ------------------------------------------------------------------------------


def _signed(value: np.ndarray) -> np.ndarray:
    return (value ^ 0x8000_0000) - 0x8000_0000


def _as_float(value: np.ndarray) -> np.ndarray:
    return value.astype(np.uint32).view(np.float32)


def _from_float(value: np.ndarray) -> np.ndarray:
    return (
        np.atleast_1d(value.astype(np.float32))
        .view(np.uint32)
        .astype(np.int64)
        .reshape(value.shape)
    )


_COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_NO_EFFECT = frozenset(
    {"NOP", "BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC", "YIELD", "NANOSLEEP"}  # convergence
    | {"BAR", "DEPBAR", "LDGDEPBAR", "MEMBAR", "ERRBAR", "FENCE", "CCTL", "CCTLL"}  # order
)
"""What neither computes nor asks for memory: lanes run in step here, and values do not matter."""
_LOADS = frozenset(["LDG", "LDS", "LDL", "LDSM"])
_STORES = frozenset(["STG", "STS", "STL"])
_UNSUPPORTED = frozenset(
    {"STSM", "LD", "ST", "ATOM", "ATOMG", "ATOMS", "RED", "REDG"}  # other memory
    | {"BRX", "JMP", "CALL", "RET"}  # indirect jumps
)
_NOT_FOLLOWED = {
    "UTMALDG": "copies of TMA",
    "UTMASTG": "copies of TMA",
    "UBLKCP": "bulk copies",
    "SYNCS": "mbarriers",
    "UCGABAR_ARV": "barriers of a cluster",
    "HGMMA": "products of warpgroups",
    "UTCHMMA": "products of the fifth generation of tensor cores",
}
"""Instructions that make threads wait for others, which one goes on when is not computed, or that
read shared memory by descriptors."""


class _Lanes:
    """Threads that an instruction runs for, as a row of lanes for each warp (of each trip)."""

    def __init__(self, on: np.ndarray, weights: np.ndarray, share: int) -> None:
        """`share` is how many trips each row of `on` stands for."""
        active, weight = on.reshape(-1, WARP), weights
        if on.ndim == 2:
            weight = np.tile(weights, len(on))
        have = active.any(axis=1)
        self.warps = None if have.all() else np.flatnonzero(have)
        """Rows that have threads; None if all do."""
        self.active = active if self.warps is None else active[self.warps]
        self.weight = share * (weight if self.warps is None else weight[self.warps])
        """What each row counts for: blocks that its block stands for, times trips."""
        self.requests = int(self.weight.sum())
        self.threads = int((self.active.sum(axis=1) * self.weight).sum())

    def of(self, values: np.ndarray) -> np.ndarray:
        """Values of these threads, a row for each warp."""
        rows = values.reshape(-1, WARP)
        return rows if self.warps is None else rows[self.warps]


@dataclass
class Machine:
    """Threads of some blocks, their registers, and what they have asked of memory so far."""

    program: Program
    threads: int
    """Threads that run side by side; each block is padded to whole warps."""
    special: Mapping[str, np.ndarray]
    constants: Mapping[int, int]
    """32-bit words of constant bank 0 by byte offset."""
    weights: np.ndarray
    """For each warp, how many blocks its block stands for."""
    registers: dict[str, Value] = field(default_factory=dict)
    predicates: dict[str, Value] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    by_line: Counter[tuple[int | None, str]] = field(default_factory=Counter)
    steps: int = 0
    trips: int = 1
    """Trips of a loop that run side by side now."""
    _lanes: dict[int, tuple[np.ndarray, int, _Lanes]] = field(default_factory=dict)
    _issued: tuple[np.ndarray, int, int] | None = None

    def issue(self, here: np.ndarray) -> None:
        """Count an instruction for every warp that has threads `here`, whatever its predicate."""
        kept = self._issued
        if kept is None or kept[0] is not here or kept[1] != self.trips:
            warps = here.reshape(-1, WARP).any(axis=1)
            rows = len(here) if here.ndim == 2 else 1
            weight = np.tile(self.weights, rows) if rows > 1 else self.weights
            kept = here, self.trips, int(weight[warps].sum()) * (self.trips // rows)
            self._issued = kept
        self.counts[INSTRUCTIONS] += kept[2]

    def advance(self, instructions: int) -> None:
        self.steps += instructions
        self.within_limit(0)

    def within_limit(self, more: int) -> None:
        if self.steps + more > _MOST_STEPS:
            raise EmulatorError("the machine code does not come to an end: a loop was misread")

    def lanes(self, on: np.ndarray, rows: int = 1) -> _Lanes:
        """The warps of the threads `on`, in so many rows of trips; kept for the next instruction,
        which mostly runs for the same array of threads."""
        rows = max(rows, len(on) if on.ndim == 2 else 1)
        kept = self._lanes.get(rows)
        if kept is None or kept[0] is not on or kept[1] != self.trips:
            each = on if rows == 1 else np.broadcast_to(on, (rows, self.threads))
            kept = self._lanes[rows] = (
                on,
                self.trips,
                _Lanes(each, self.weights, self.trips // rows),
            )
        return kept[2]

    # -- operands --

    def constant(self, text: str, word: int = 0) -> Value:
        offset = _constant_offset(text)
        known = None if offset is None else self.constants.get(offset + 4 * word)
        return Unknown(f"constant {text}") if known is None else np.array(known, np.int64)

    def read(self, text: str, word: int = 0) -> Value:
        """An operand as unsigned 32 bits; `word` 1 is the upper half of a pair."""
        operand = _operand(text, word)
        value: Value
        if operand.register:
            value = self.registers.get(operand.register, operand.value)
        elif operand.constant:
            value = self.constant(operand.constant, word)
        else:
            value = operand.value
        if isinstance(value, Unknown):
            return value
        known: np.ndarray = np.abs(_signed(value)) if operand.absolute else value
        if operand.sign == "~":
            return known ^ MASK
        # a negative is not reduced to 32 bits: the carry of 0 - 0 is 1
        return 0x1_0000_0000 - known if operand.sign == "-" else known

    def pair(self, text: str) -> Value:
        """A 64-bit operand in a register pair, a constant or an immediate."""
        low, high = self.read(text.lstrip("-")), self.read(text.lstrip("-"), 1)
        if isinstance(low, Unknown):
            return low
        if isinstance(high, Unknown):
            return high
        value = low | high << 32
        negated: np.ndarray = np.negative(value)
        return negated if text.startswith("-") else value

    def predicate(self, text: str) -> Value:
        negated, name = text.startswith("!"), text.lstrip("!")
        value: Value
        if name in ("PT", "UPT"):
            value = np.array(True)
        else:
            known = self.predicates.get(name)
            value = _never_set(name) if known is None else known
        if isinstance(value, Unknown):
            return value
        return ~value if negated else value

    # -- results --

    def write(
        self, store: dict[str, Value], name: str, value: Value, on: np.ndarray | None
    ) -> None:
        if name in ("RZ", "URZ", "PT", "UPT"):
            return
        if on is None or isinstance(value, Unknown):
            store[name] = value
            return
        before = store.get(name)
        if before is None or isinstance(before, Unknown):
            before = np.zeros_like(value)  # lanes that are off keep nothing that was known
        store[name] = np.where(on, value, before)

    def set(self, text: str, value: Value, on: np.ndarray | None, words: int = 1) -> None:
        """Write a register, or `words` consecutive ones from the low to the high bits."""
        for word, name in enumerate(_register_names(text, words)):
            part = value if isinstance(value, Unknown) else (value >> (32 * word)) & MASK
            self.write(self.registers, name, part, on)

    # -- addresses --

    def address(self, text: str) -> Value:
        """What a memory operand points to: ``desc[UR8][R6.64+UR4+0x10]`` or ``[R4.X4+0x20]``."""
        total: Value = _ZERO
        for term, number in _address_terms(text):
            value: Value
            if number is not None:
                value = number
            elif term.endswith(".64"):
                value = self.pair(term)
            else:
                value = self.read(term)
                if not isinstance(value, Unknown) and term.endswith(".X4"):
                    value = value * 4
            if isinstance(value, Unknown):
                return value
            assert not isinstance(total, Unknown)
            total = total + value
        return total


def _need(value: Value, instruction: Instruction) -> np.ndarray:
    if isinstance(value, Unknown):
        raise EmulatorError(
            f"the machine code cannot be counted: '{instruction}' "
            f"(at {instruction.address:#x}) depends on {value.why}"
        )
    return value


def _lut3(inputs: Sequence[np.ndarray], table: int, mask: int) -> np.ndarray:
    """Any function of three bits, bit by bit; `table` holds its values for 4a + 2b + c."""
    a, b, c = inputs
    out = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.int64)
    for index in range(8):
        if table >> index & 1:
            out = out | (
                (a if index & 4 else a ^ mask)
                & (b if index & 2 else b ^ mask)
                & (c if index & 1 else c ^ mask)
            )
    return out


Operation = Callable[[Machine, Instruction, np.ndarray | None], None]


def _integer(machine: Machine, item: Instruction, on: np.ndarray | None) -> bool:
    """Run an integer instruction; False if it is none that is known."""
    name, flags = item.opcode[0], set(item.opcode[1:])
    name = name[1:] if name.startswith("U") and name != "UNKNOWN" else name
    operands = list(item.operands)
    read, set_ = machine.read, machine.set

    def take_predicates(start: int) -> list[str]:
        """Predicate operands at `start`, removed: the carry outputs."""
        taken = []
        while start < len(operands) and _is_predicate(operands[start]):
            taken.append(operands.pop(start))
        return taken

    def reads(*texts: str) -> list[np.ndarray] | Unknown:
        values = [read(text) for text in texts]
        for value in values:
            if isinstance(value, Unknown):
                return value
        return values  # type: ignore[return-value]

    def carry_in(texts: Sequence[str]) -> Value:
        total: Value = _ZERO
        for text in texts:
            value = machine.predicate(text)
            if isinstance(value, Unknown):
                return value
            total = total + value.astype(np.int64)  # type: ignore[operator]
        return total

    def carries_out(names: Sequence[str], value: Value) -> None:
        for index, out in enumerate(names):
            carry = value if isinstance(value, Unknown) else (value >> 32) > index
            machine.write(machine.predicates, out, carry, on)

    if name in ("MOV", "R2UR"):
        set_(operands[0], read(operands[-1] if name == "R2UR" else operands[1]), on)
    elif name in ("S2R", "S2UR"):
        set_(operands[0], machine.special.get(operands[1], Unknown(operands[1])), on)
    elif name == "P2R" and not flags:  # predicates kept in the bits of a register
        packed: Value = read(operands[2])
        mask = read(operands[3])
        if isinstance(mask, Unknown) or mask.ndim:
            return False
        for bit in range(7):
            if int(mask) >> bit & 1 and not isinstance(packed, Unknown):
                kept = machine.predicate(f"P{bit}")
                packed = (
                    kept
                    if isinstance(kept, Unknown)
                    else packed & ~(1 << bit) | kept.astype(np.int64) << bit
                )
        set_(operands[0], packed, on)
    elif name == "R2P" and not flags:  # and back
        packed, mask = read(operands[1]), read(operands[2])
        if isinstance(mask, Unknown) or mask.ndim:
            return False
        for bit in range(7):
            if int(mask) >> bit & 1:
                value = packed if isinstance(packed, Unknown) else (packed >> bit & 1) != 0
                machine.write(machine.predicates, f"P{bit}", value, on)
    elif name == "CS2R":
        value = _ZERO if operands[1] == "SRZ" else Unknown(operands[1])
        set_(operands[0], value, on, 1 if "32" in flags else 2)
    elif name in ("LDC", "LDCU"):
        words = 4 if "128" in flags else 2 if "64" in flags else 1
        for word, register in enumerate(_register_names(operands[0], words)):
            machine.write(machine.registers, register, machine.constant(operands[1], word), on)
    elif name == "IMAD":
        outs = take_predicates(1)
        if "WIDE" in flags:
            values, addend = reads(operands[1], operands[2]), machine.pair(operands[3])
            if isinstance(values, Unknown) or isinstance(addend, Unknown):
                set_(operands[0], values if isinstance(values, Unknown) else addend, on, 2)
                return True
            a, b = values if "U32" in flags else [_signed(v) for v in values]
            set_(operands[0], a * b + addend, on, 2)
            for out in outs:
                machine.write(machine.predicates, out, Unknown(f"the carry of {item}"), on)
        elif "HI" in flags:
            values = reads(operands[1], operands[2])
            addend = machine.pair(operands[3])
            if isinstance(values, Unknown) or isinstance(addend, Unknown):
                set_(operands[0], values if isinstance(values, Unknown) else addend, on)
                return True
            a, b = values if "U32" in flags else [_signed(v) for v in values]
            set_(operands[0], (a * b + addend) >> 32, on)
        else:
            carried = carry_in(operands[4:]) if "X" in flags else _ZERO
            values = reads(*operands[1:4])
            if isinstance(values, Unknown) or isinstance(carried, Unknown):
                set_(operands[0], values if isinstance(values, Unknown) else carried, on)
                return True
            a, b, c = values
            set_(operands[0], a * b + c + carried, on)
    elif name in ("IADD3", "IADD", "VIADD"):
        outs = take_predicates(1)
        if "64" in flags:
            total64 = _ZERO
            for text in operands[1:]:  # two, of IADD3 three
                value = machine.pair(text)
                if isinstance(value, Unknown):
                    set_(operands[0], value, on, 2)
                    return True
                total64 = total64 + value
            set_(operands[0], total64, on, 2)
            return True
        carried = carry_in(operands[4:]) if "X" in flags else _ZERO
        values = reads(*operands[1:4])
        if isinstance(values, Unknown) or isinstance(carried, Unknown):
            unknown = values if isinstance(values, Unknown) else carried
            set_(operands[0], unknown, on)
            carries_out(outs, unknown)
            return True
        total = sum(values[1:], values[0]) + carried
        set_(operands[0], total, on)
        carries_out(outs, total)
    elif name == "LEA":
        outs = take_predicates(1)
        shift = int(next(text for text in reversed(operands) if text.startswith("0x")), 16)
        carried = carry_in(operands[-1:]) if "X" in flags else _ZERO
        sources = operands[1:]
        values = reads(sources[0], sources[1])
        high: Value = _ZERO
        if "HI" in flags and "SX32" not in flags and not sources[2].startswith("0x"):
            high = read(sources[2])
        if isinstance(values, Unknown) or isinstance(high, Unknown) or isinstance(carried, Unknown):
            set_(
                operands[0], next(v for v in (values, high, carried) if isinstance(v, Unknown)), on
            )
            carries_out(outs, Unknown(f"the carry of {item}"))
            return True
        a, b = values
        if "SX32" in flags:
            shifted = (_signed(a) << shift) >> 32
        elif "HI" in flags:
            shifted = ((a & MASK) | (high & MASK) << 32) << shift >> 32
        else:
            shifted = a << shift
        total = (shifted & MASK) + b + carried
        set_(operands[0], total, on)
        carries_out(outs, total)
    elif name == "LOP3":
        outs = take_predicates(0)  # before the register, unlike a carry
        values = reads(*operands[1:4])
        if isinstance(values, Unknown):
            set_(operands[0], values, on)
            carries_out(outs, values)
            return True
        value = _lut3(values, int(operands[4], 16), MASK) & MASK
        set_(operands[0], value, on)
        for out in outs:
            machine.write(machine.predicates, out, value != 0, on)
    elif name == "PLOP3":
        outs = take_predicates(0)
        inputs, outs = outs[2:5], outs[:2]
        tables = [int(text, 16) for text in operands[:2]]
        bits = []
        for text in inputs:
            predicate = machine.predicate(text)
            if isinstance(predicate, Unknown):
                for out in outs:
                    machine.write(machine.predicates, out, predicate, on)
                return True
            bits.append(predicate.astype(np.int64))
        for out, table in zip(outs, tables, strict=False):
            machine.write(machine.predicates, out, _lut3(bits, table, 1) != 0, on)
    elif name == "SHF":
        values = reads(*operands[1:4])
        if isinstance(values, Unknown):
            set_(operands[0], values, on)
            return True
        low, amount, high_word = values
        amount = amount & 63
        both = (low & MASK) | (high_word & MASK) << 32
        if "L" in flags:
            set_(operands[0], (both << amount) >> (32 if "HI" in flags else 0), on)
        elif "S32" in flags or "S64" in flags:
            signed64 = (low & MASK) | _signed(high_word) << 32
            set_(operands[0], (signed64 >> amount) >> (32 if "HI" in flags else 0), on)
        elif "HI" in flags:
            set_(operands[0], (high_word & MASK) >> np.minimum(amount, 32), on)
        else:
            set_(
                operands[0],
                np.where(
                    amount == 0,
                    both,
                    (both >> 1 & 0x7FFF_FFFF_FFFF_FFFF) >> np.maximum(amount - 1, 0),
                ),
                on,
            )
    elif name == "ISETP":
        compare = next(flag for flag in item.opcode[1:] if flag in _COMPARE)
        values = reads(operands[2], operands[3])
        combine, extended = machine.predicate(operands[4]), None
        if "EX" in flags:
            extended = machine.predicate(operands[5])
        if (
            isinstance(values, Unknown)
            or isinstance(combine, Unknown)
            or isinstance(extended, Unknown)
        ):
            why = next(v for v in (values, combine, extended) if isinstance(v, Unknown))
            machine.write(machine.predicates, operands[0], why, on)
            machine.write(machine.predicates, operands[1], why, on)
            return True
        a, b = [v & MASK for v in values]
        if "U32" not in flags:
            a, b = _signed(a), _signed(b)
        outcome = _COMPARE[compare](a, b)
        if extended is not None:
            strict = {"LE": "LT", "GE": "GT"}.get(compare, compare)
            outcome = _COMPARE[strict](a, b)
            equal = a == b
            outcome = (
                equal & extended
                if compare == "EQ"
                else outcome | extended
                if compare == "NE"
                else outcome | (equal & extended)
            )
        joined = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}[
            next(flag for flag in item.opcode[1:] if flag in ("AND", "OR", "XOR"))
        ]
        machine.write(machine.predicates, operands[0], joined(outcome, combine), on)
        machine.write(machine.predicates, operands[1], joined(~outcome, combine), on)
    elif name in ("SEL", "IMNMX", "VIMNMX", "VIADDMNMX"):
        if name == "VIADDMNMX":
            values = reads(*operands[1:4])
            if not isinstance(values, Unknown):
                values = [values[0] + values[1], values[2]]
        else:
            values = reads(*operands[1:3])
        condition = machine.predicate(operands[-1])
        if isinstance(values, Unknown) or isinstance(condition, Unknown):
            set_(operands[0], values if isinstance(values, Unknown) else condition, on)
            return True
        a, b = [v & MASK for v in values]
        if name != "SEL":
            if "U32" not in flags:
                a, b = _signed(a), _signed(b)
            a, b = np.minimum(a, b), np.maximum(a, b)
        set_(operands[0], np.where(condition, a, b), on)
    elif name == "IABS":
        value = read(operands[1])
        set_(operands[0], value if isinstance(value, Unknown) else np.abs(_signed(value)), on)
    elif name == "PRMT":
        values = reads(*operands[1:4])
        if isinstance(values, Unknown) or flags - {""}:
            set_(operands[0], values if isinstance(values, Unknown) else Unknown(str(item)), on)
            return True
        low, selector, high_word = values
        both, picked = low & MASK | (high_word & MASK) << 32, _ZERO
        for index in range(4):
            which = selector >> (4 * index) & 15
            byte = both >> (8 * (which & 7)) & 0xFF
            picked = picked | np.where(which & 8, np.where(byte & 0x80, 0xFF, 0), byte) << (
                8 * index
            )
        set_(operands[0], picked, on)
    elif name == "I2F":
        value = read(operands[1])
        if not isinstance(value, Unknown):
            exact = (value if "U32" in flags else _signed(value)).astype(np.float64)
            single = exact.astype(np.float32)
            if "RP" in flags:  # towards plus infinity
                single = np.where(single < exact, np.nextafter(single, np.float32(np.inf)), single)
            value = _from_float(single)
        set_(operands[0], value, on)
    elif name == "MUFU" and "RCP" in flags:
        value = read(operands[1])
        if not isinstance(value, Unknown):
            with np.errstate(all="ignore"):
                value = _from_float(np.float32(1) / _as_float(value))
        set_(operands[0], value, on)
    elif name == "F2I":
        value = read(operands[1])
        if not isinstance(value, Unknown):
            with np.errstate(all="ignore"):
                whole = np.nan_to_num(
                    np.trunc(_as_float(value).astype(np.float64)), posinf=0, neginf=0
                )
            value = np.clip(whole, 0 if "U32" in flags else -(2**31), 2**32 - 1).astype(np.int64)
        set_(operands[0], value, on)
    elif name.startswith("HFMA2") and operands[1:3] == ["-RZ", "RZ"]:
        high_half, low_half = (
            np.array(float(text), np.float16).view(np.uint16) for text in operands[3:5]
        )
        set_(operands[0], np.array(int(high_half) << 16 | int(low_half), np.int64), on)
    else:
        return False
    return True


_SHARED_METRICS = {
    "LDS": (metric.SHARED_LOADS, metric.SHARED_LOAD_WAVEFRONTS, metric.SHARED_LOAD_CONFLICTS),
    "STS": (metric.SHARED_STORES, metric.SHARED_STORE_WAVEFRONTS, metric.SHARED_STORE_CONFLICTS),
    "LDSM": (metric.LDMATRIX_INSTRUCTIONS, metric.LDMATRIX_WAVEFRONTS, metric.LDMATRIX_CONFLICTS),
}
"""Instructions, wavefronts and bank conflicts."""


def _matrices(item: Instruction) -> int:
    """How many matrices an LDSM loads: its last part, where there are more than one."""
    return int(item.opcode[-1]) if item.opcode[-1] in ("2", "4") else 1


def _product_flops(item: Instruction) -> int:
    """Multiplications and additions of an HMMA, whose shape is written as 16816 for 16 x 8 x 16."""
    shape = re.fullmatch(r"168(\d+)", item.opcode[1])
    if shape is None:
        raise EmulatorError(
            f"the machine code cannot be counted: the shape of '{item}' is not known"
        )
    return 2 * 16 * 8 * int(shape[1])


def _width(item: Instruction) -> int:
    if item.opcode[0] == "LDSM":
        return 16
    for flag, width in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)):
        if flag in item.opcode[1:]:
            return width
    return 4


def _memory(machine: Machine, step: _Step, here: np.ndarray, on: np.ndarray) -> None:
    """Count one memory instruction of every warp that has threads here."""
    item, name, width = step.item, step.name, step.width
    issued, requests = machine.lanes(here).requests, machine.lanes(on).requests
    machine.by_line[item.line, ".".join(item.opcode)] += issued
    counts = machine.counts
    if name in ("LDS", "STS"):
        counts[PREDICATED_SHARED_LOADS if name == "LDS" else PREDICATED_SHARED_STORES] += issued
    if name in ("LDL", "STL"):
        counts[LOCAL_LOADS if name == "LDL" else LOCAL_STORES] += requests
    if not requests or name in ("LDL", "STL"):
        return
    texts = {
        "LDG": item.operands[1:2],
        "LDS": item.operands[1:2],
        "LDSM": item.operands[1:2],
        "LDGSTS": item.operands[:2],
    }.get(name, item.operands[:1])
    addresses = [_need(machine.address(text), item) for text in texts]
    # What differs from trip to trip has a row for each; what does not costs the same in all.
    rows = max(len(value) if np.ndim(value) == 2 else 1 for value in (on, *addresses))
    trips = rows if on.ndim == 1 else 1
    which = machine.lanes(on, rows)

    def lanes(address: np.ndarray) -> np.ndarray:
        return which.of(np.broadcast_to(address, (rows, machine.threads)))

    if name in ("LDG", "STG"):
        sectors = _pieces(lanes(addresses[0]) >> 5, which, trips)
        loads = name == "LDG"
        counts[metric.GLOBAL_LOAD_REQUESTS if loads else metric.GLOBAL_STORE_REQUESTS] += requests
        counts[metric.GLOBAL_LOAD_SECTORS if loads else metric.GLOBAL_STORE_SECTORS] += sectors
    elif name == "LDGSTS":
        shared, source = (lanes(address) for address in addresses)
        # A 16-byte copy that bypasses L1 is counted by what each line fills in shared memory.
        bypass = "BYPASS" in item.opcode and width == 16
        pieces = (source >> 7 << 20) | (shared >> 5) if bypass else source >> 5
        counts[metric.GLOBAL_LOAD_REQUESTS] += requests
        counts[metric.GLOBAL_LOAD_SECTORS] += _pieces(pieces, which, trips)
        counts[metric.ASYNC_COPIES] += requests
    else:
        load = name == "LDS"
        address = lanes(addresses[0])
        active = which.active
        if name == "LDSM":  # lanes beyond the last matrix name no row
            active = active & (np.arange(WARP) < 8 * _matrices(item))
        first = address[np.arange(len(address)), active.argmax(axis=1)]
        pattern = np.where(active, address - first[:, None], 0)
        wavefronts = least = 0
        for row, lanes_of_row, times in _alike(pattern, active, which.weight):
            cost = _wavefronts(row, lanes_of_row, width, load)
            wavefronts += times * cost[0]
            least += times * cost[1]
        instructions_, wavefronts_, conflicts_ = _SHARED_METRICS[name]
        counts[instructions_] += requests
        counts[wavefronts_] += wavefronts
        counts[conflicts_] += wavefronts - least


def _pieces(pieces: np.ndarray, which: _Lanes, trips: int) -> int:
    """Distinct pieces of memory that warps touch, by their weights.

    Args:
        pieces: a number for each lane's piece, a row for each warp of each trip.
        trips: how many times over the rows stand for the same warps and lanes.
    """
    active, weight = which.active, which.weight
    if trips > 1:
        # Moving all of a warp's pieces alike keeps their number: mostly one trip tells of all.
        relative = (pieces - pieces[:, :1]).reshape(trips, -1, WARP)
        if (relative == relative[0]).all():
            warps = len(pieces) // trips
            pieces, active, weight = pieces[:warps], active[:warps], trips * weight[:warps]
    return int((distinct(pieces, active) * weight).sum())


def _alike(
    pattern: np.ndarray, active: np.ndarray, weight: np.ndarray
) -> list[tuple[bytes, bytes, int]]:
    """Rows that differ, as bytes, each with the weight of all that equal it."""
    if (pattern == pattern[0]).all() and (active == active[0]).all():
        return [(pattern[0].tobytes(), active[0].tobytes(), int(weight.sum()))]
    weights: Counter[tuple[bytes, bytes]] = Counter()
    for row, lanes_of_row, times in zip(pattern, active, weight.tolist(), strict=True):
        weights[row.tobytes(), lanes_of_row.tobytes()] += times
    return [(*key, times) for key, times in weights.items()]


# --- control flow ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """An instruction with everything that its text alone decides."""

    item: Instruction
    name: str
    kind: Literal["exit", "jump", "nothing", "unsupported", "memory", "other"]
    width: int
    """Bytes that each thread of a memory instruction moves."""
    conditions: tuple[str, ...]
    """Predicates of a jump beyond its guard."""
    target: int | None
    """Index that a jump goes to."""
    ends_run: bool
    """Whether threads may part here."""
    registers: tuple[str, ...]
    predicates: tuple[str, ...]
    """What holds `result` afterwards, where the value is not computed."""
    result: Unknown


def _decode(program: Program) -> list[_Step]:
    return [_decoded(program, item) for item in program.instructions]


def _decoded(program: Program, item: Instruction) -> _Step:
    name, target, width = item.opcode[0], None, _width(item)
    conditions: tuple[str, ...] = ()
    kind: Literal["exit", "jump", "nothing", "unsupported", "memory", "other"] = "other"
    words = 4 if name == "HMMA" else 2 if name.startswith("D") or name == "F2F" else 1
    results = item.operands[:2]
    if name == "EXIT":
        kind = "exit"
    elif (name == "BRA" and "DIV" not in item.opcode) or item.opcode[:3] == _JUMP:
        kind = "jump"
        conditions = tuple(text for text in item.operands[:-1] if _is_predicate(text))
        match = re.search(r"\.L[\w.]*", item.operands[-1])
        target = program.labels.get(match[0]) if match else None
    elif name in _NO_EFFECT or name == "BRA":
        kind = "nothing"
    elif name in _UNSUPPORTED:
        kind = "unsupported"
    elif name in _LOADS or name in _STORES or name == "LDGSTS":
        kind = "memory"
        results, words = item.operands[:1] if name in _LOADS else (), max(width // 4, 1)
        if name == "LDSM":
            words = _matrices(item)
    return _Step(
        item,
        name,
        kind,
        width,
        conditions,
        target,
        name in ("EXIT", "BRA", "CALL"),
        _register_names(results[0], words) if results else (),
        tuple(text for text in results if re.fullmatch(r"U?P\d+", text)),
        Unknown(f"'{item}'"),
    )


def _run_step(
    machine: Machine, step: _Step, here: np.ndarray, on: np.ndarray, everyone: bool
) -> None:
    """One instruction that is no jump, for the threads `on` of those `here`."""
    if step.kind == "nothing":
        return
    if step.kind == "unsupported":
        if on.any():
            raise EmulatorError(f"the machine code cannot be counted: '{step.item}' is not known")
        return
    if step.kind == "memory":
        _memory(machine, step, here, on)
    elif step.name == "FFMA":
        machine.counts[FFMA] += machine.lanes(on).threads
    elif step.name == "HMMA":
        warps = machine.lanes(on).requests
        machine.counts[metric.MMA_INSTRUCTIONS] += warps
        machine.counts[metric.TENSOR_CORE_FLOPS] += warps * _product_flops(step.item)
    elif _integer(machine, step.item, None if everyone and step.item.guard is None else on):
        return
    # A value that is not computed is unknown for every thread.
    for name in step.predicates:
        machine.predicates[name] = step.result
    for name in step.registers:
        machine.registers[name] = step.result


def _threads_on(machine: Machine, step: _Step, here: np.ndarray) -> np.ndarray:
    """Those `here` for whom the instruction's predicates hold."""
    on = here
    for text in (*((step.item.guard,) if step.item.guard else ()), *step.conditions):
        on = on & _need(machine.predicate(text), step.item)
    return on


def _execute(machine: Machine, exists: np.ndarray, many_trips: bool) -> None:
    """Run all threads to their ends."""
    steps = _decode(machine.program)
    loops = _Loops(machine, steps) if many_trips else None
    waiting: dict[int, np.ndarray] = {0: exists}
    came_from: int | None = None
    while waiting:
        index = min(waiting)
        here = waiting.pop(index)
        everyone = bool((here == exists).all())
        if loops and came_from is not None:
            loops.again(index, came_from, here, everyone, min(waiting, default=len(steps)))
        came_from = None
        while True:
            if index in waiting:  # others have come to the same place
                here = here | waiting.pop(index)
                everyone = bool((here == exists).all())
            step = steps[index]
            machine.advance(1)
            machine.issue(here)
            if step.kind == "exit":
                here = here & ~_threads_on(machine, step, here)
            elif step.kind == "jump":
                taken = _threads_on(machine, step, here)
                if step.target is None:
                    raise EmulatorError(f"the target of '{step.item}' is not a label")
                if (taken == here).all():
                    taken = here  # the same array again: what is kept for it holds
                    if step.target <= index and step.target < min(waiting, default=len(steps)):
                        came_from = index
                if taken.any():
                    others = waiting.get(step.target)
                    waiting[step.target] = taken if others is None else others | taken
                here = here & ~taken
            else:
                on = here
                if step.item.guard is not None:
                    on = here & _need(machine.predicate(step.item.guard), step.item)
                _run_step(machine, step, here, on, everyone)
            index += 1
            if step.ends_run:
                if not here.any():
                    break
                everyone = bool((here == exists).all())
                if waiting and min(waiting) < index:
                    waiting[index] = waiting.get(index, np.zeros_like(here)) | here
                    break


class _Loops:
    """Runs the trips of a loop many at a time, once its first trips show how it goes on."""

    def __init__(self, machine: Machine, steps: Sequence[_Step]) -> None:
        self.machine, self.steps = machine, steps
        self.most_trips = _MOST_VALUES // machine.threads
        self.starts: dict[int, tuple[np.ndarray, list[_State]]] = {}
        """By the loop's first instruction: the threads in it, and the last starts of a trip."""
        self.disappointments: Counter[int] = Counter()

    def again(self, head: int, last: int, here: np.ndarray, everyone: bool, next_: int) -> None:
        """All threads in a loop have jumped from its last instruction to its head.

        Args:
            next_: lowest instruction at which other threads wait.
        """
        for inner in [inner for inner in self.starts if head < inner <= last]:
            del self.starts[inner]  # it will begin anew
        threads, starts = self.starts.get(head, (here, []))
        if threads is not here and not np.array_equal(threads, here):
            starts = []
        machine = self.machine
        # Dictionaries are copied, arrays need not be: no instruction changes one in place.
        starts.append((dict(machine.registers), dict(machine.predicates)))
        del starts[:-REMEMBERED]
        self.starts[head] = here, starts
        # Others that wait within the loop would join on the way.
        if len(starts) < 3 or next_ <= last or self.disappointments[head] >= _PATIENCE:
            return
        trips = first = min(8, self.most_trips)
        while trips >= 4:
            ran = self._run(head, last, here, everyone, starts, trips)
            if ran < trips:
                if ran < 3 and trips == first and (ran or len(starts) == REMEMBERED):
                    self.disappointments[head] += 1
                return
            trips = min(4 * trips, self.most_trips)

    def _run(
        self,
        head: int,
        last: int,
        here: np.ndarray,
        everyone: bool,
        starts: list[_State],
        trips: int,
    ) -> int:
        """Run up to `trips` trips, and say how many; the machine stands at the loop's head then."""
        machine, length = self.machine, 0
        counted = machine.counts, machine.by_line
        while True:
            registers = Trips([start[0] for start in starts], trips)
            predicates = Trips([start[1] for start in starts], trips)
            machine.registers, machine.predicates = registers, predicates
            machine.counts, machine.by_line, machine.trips = Counter(), Counter(), trips
            try:
                good, length = self._one_way(head, last, here, everyone, trips)
                good = min(good, registers.proved(), predicates.proved()) if good else 0
            except (GuessError, EmulatorError):  # an error that is one comes again, step by step
                good = 0
            counts, by_line = machine.counts, machine.by_line
            machine.counts, machine.by_line = counted
            machine.registers, machine.predicates = (dict(part) for part in starts[-1])
            machine.trips = 1
            if good == 0:
                return 0
            if good == trips:
                break
            trips = good  # once more, without those that did something else
        machine.counts.update(counts)
        machine.by_line.update(by_line)
        machine.advance(trips * length)
        starts.extend(
            (registers.after(trip), predicates.after(trip))
            for trip in range(max(0, trips - REMEMBERED), trips)
        )
        del starts[:-REMEMBERED]
        machine.registers, machine.predicates = (dict(part) for part in starts[-1])
        return trips

    def _one_way(
        self, head: int, last: int, here: np.ndarray, everyone: bool, trips: int
    ) -> tuple[int, int]:
        """Run one trip's instructions for all trips.

        Returns:
            How many of the first trips go the same way, round the loop, with all their threads; and
            how many instructions that is.
        """
        machine, index, length, good = self.machine, head, 0, trips
        while head <= index <= last:
            step = self.steps[index]
            length += 1
            machine.within_limit(trips * length)
            machine.issue(here)
            index += 1
            if step.kind == "exit":
                good = min(good, leading(~_threads_on(machine, step, here), trips))
            elif step.kind == "jump":
                taken = _threads_on(machine, step, here)
                stay, go = leading(~taken, trips), leading(taken | ~here, trips)
                good = min(good, max(stay, go))
                if go > stay:
                    if step.target is None:
                        return 0, length
                    if step.target == head:
                        return good, length
                    index = step.target
            else:
                _run_step(machine, step, here, _threads_on(machine, step, here), everyone)
            if not good:
                break
        return 0, length


def _constants(
    program: Program,
    arguments: Sequence[int | np.ndarray],
    block: Sequence[int],
    grid: Sequence[int],
) -> dict[int, int]:
    """Constant bank 0: the launch geometry and the arguments (arrays stand for their addresses)."""
    match = re.match(r"sm_(\d+)", program.target)
    recent = match is not None and int(match[1]) >= 100
    geometry = (0x360, 0x370) if recent else (0x0, 0xC)
    words = {geometry[0] + 4 * i: value for i, value in enumerate(block)}
    words |= {geometry[1] + 4 * i: value for i, value in enumerate(grid)}
    offset, arrays = program.parameter_offset, 0
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            address = _FIRST_ARRAY + arrays * _ARRAY_SPACING
            arrays += 1
            offset = (offset + 7) & ~7
            words[offset], words[offset + 4] = address & MASK, address >> 32
            offset += 8
        else:
            words[offset] = argument & MASK
            offset += 4
    return words


def count_program(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[int | np.ndarray],
    *,
    blocks: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    many_trips: bool = True,
) -> CompiledCounts:
    """Count the memory instructions of a launch.

    Args:
        arguments: integers as they are; any array for a pointer (its contents do not matter).
        blocks, weights: linear block indices to run, and how many blocks each stands for; all
            blocks by default.
        many_trips: run trips of a loop side by side where that is proved to be the same.

    Raises:
        EmulatorError: if an address or a branch depends on what is not computed.
    """
    for item in program.instructions:
        if item.opcode[0] in _NOT_FOLLOWED:
            raise EmulatorError(
                f"the machine code cannot be counted: it has {_NOT_FOLLOWED[item.opcode[0]]} "
                f"({item.opcode[0]})"
            )
    if blocks is None:
        blocks = np.arange(grid[0] * grid[1] * grid[2])
        weights = np.ones(len(blocks))
    assert weights is not None
    chosen, shares = blocks.astype(np.int64), weights.astype(np.int64)
    threads = block[0] * block[1] * block[2]
    padded = -(-threads // WARP) * WARP
    linear = np.tile(np.arange(padded), len(chosen))
    of_block = np.repeat(chosen, padded)
    special = {
        "SR_TID.X": linear % block[0],
        "SR_TID.Y": linear // block[0] % block[1],
        "SR_TID.Z": linear // (block[0] * block[1]),
        "SR_CTAID.X": of_block % grid[0],
        "SR_CTAID.Y": of_block // grid[0] % grid[1],
        "SR_CTAID.Z": of_block // (grid[0] * grid[1]),
        "SR_LANEID": linear % WARP,
        "SR_CgaCtaId": _ZERO,
    }
    machine = Machine(
        program,
        len(linear),
        special,
        _constants(program, arguments, block, grid),
        np.repeat(shares, padded // WARP),
    )
    _execute(machine, linear < threads, many_trips)
    names = (
        metric.GLOBAL_LOAD_REQUESTS,
        metric.GLOBAL_LOAD_SECTORS,
        metric.GLOBAL_STORE_REQUESTS,
        metric.GLOBAL_STORE_SECTORS,
        metric.SHARED_LOADS,
        metric.SHARED_STORES,
        PREDICATED_SHARED_LOADS,
        PREDICATED_SHARED_STORES,
        metric.ASYNC_COPIES,
        metric.SHARED_LOAD_WAVEFRONTS,
        metric.SHARED_STORE_WAVEFRONTS,
        metric.SHARED_LOAD_CONFLICTS,
        metric.SHARED_STORE_CONFLICTS,
        INSTRUCTIONS,
        FFMA,
        LOCAL_LOADS,
        LOCAL_STORES,
    )
    # Those of ldmatrix and tensor cores stand only where a kernel has them.
    return CompiledCounts(
        {name: 0 for name in names} | dict(machine.counts),
        dict(machine.by_line),
        None,
        machine.steps,
    )


def count_gemm(
    program: Program,
    grid: Sequence[int],
    block: Sequence[int],
    m: int,
    n: int,
    k: int,
    *,
    sample: bool = True,
    many_trips: bool = True,
) -> CompiledCounts:
    """Count a GEMM kernel's memory instructions as compiled, for C (M x N) = A B.

    Raises:
        EmulatorError: if the code cannot be counted, or the grid cannot be sampled exactly.
    """
    pointer = np.zeros(1, np.float32)
    arguments: list[int | np.ndarray] = [pointer, pointer, pointer, m, n, k]
    chosen = None
    if sample and sampling_fault(grid, m, n) is None:
        chosen = sample_grid(grid, m, n, k)
        chosen = one_per_class(chosen) if chosen else None
    counted = count_program(
        program,
        grid,
        block,
        arguments,
        blocks=chosen.blocks if chosen else None,
        weights=chosen.weights if chosen else None,
        many_trips=many_trips,
    )
    counted.sampled_blocks = len(chosen.blocks) if chosen else None
    return counted
