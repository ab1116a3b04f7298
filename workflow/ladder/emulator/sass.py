"""Machine code of a CUBIN as instructions: opcode, operands, source line.

The text comes from nvdisasm. Only its layout is read here; `compiled` knows what instructions do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile

from .toolchain import EmulatorError

_INSTRUCTION = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;"
)
_LABEL = re.compile(r"\s*(\.L[\w.]*):")
_FUNCTION = re.compile(r"\s*\.text\.(\w+):")
_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)(\s+inlined at)?')
_PARAMETER_BANK = 0x0A  # EIATTR_PARAM_CBANK of the .nv.info sections


@dataclass(frozen=True)
class Instruction:
    """One instruction; `opcode` is split at its dots."""

    address: int
    guard: str | None
    """The predicate that the instruction runs under, such as ``!P0``; None for always."""
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    line: int | None
    """Line of the kernel's source, where the CUBIN has line information."""

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{'.'.join(self.opcode)} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Program:
    """The code of one kernel."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    """Index of the instruction that follows each label."""
    target: str
    """Architecture, such as ``sm_90a``."""
    parameter_offset: int
    """Where the kernel's parameters begin in constant bank 0, bytes."""


def find_nvdisasm() -> str | None:
    """Path of nvdisasm: from the package nvidia-cuda-nvdisasm, else on the search path."""
    for base in {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}:
        for path in sorted(Path(base).glob("nvidia/**/bin/nvdisasm")):
            return str(path)
    return shutil.which("nvdisasm")


def disassemble(cubin: bytes) -> str:
    """nvdisasm's listing of a CUBIN, with source lines where it has them.

    Raises:
        EmulatorError: if nvdisasm is missing or refuses the file.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise EmulatorError("nvdisasm is not installed (package nvidia-cuda-nvdisasm)")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, "-c", "-g", file.name], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise EmulatorError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


def parameter_offset(cubin: bytes, kernel: str) -> int:
    """Offset of the kernel's parameters in constant bank 0, from the CUBIN's own notes.

    Raises:
        EmulatorError: if the CUBIN does not say.
    """
    section = ELFFile(BytesIO(cubin)).get_section_by_name(f".nv.info.{kernel}")
    data = section.data() if section else b""
    position = 0
    while position + 4 <= len(data):
        form, attribute = data[position], data[position + 1]
        size = int.from_bytes(data[position + 2 : position + 4], "little")
        payload = data[position + 4 : position + 4 + size] if form == 4 else b""
        if attribute == _PARAMETER_BANK and len(payload) >= 6:
            return int.from_bytes(payload[4:6], "little")
        position += 4 + len(payload)
    raise EmulatorError(f"the CUBIN does not say where the parameters of {kernel} lie")


def parse(listing: str, kernel: str, offset: int) -> Program:
    """The instructions of one kernel in a listing.

    Args:
        offset: of the parameters in constant bank 0.

    Raises:
        EmulatorError: if the kernel is not in the listing.
    """
    target = re.search(r"\.target\s+(\w+)", listing)
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    current, line = None, None
    for text in listing.splitlines():
        if match := _FUNCTION.match(text):
            current, line = match[1], None
        elif current != kernel:
            continue
        elif match := _LINE.match(text):
            line = int(match[2])  # of inlined code the last comment names the outermost call
        elif match := _LABEL.match(text):
            labels[match[1]] = len(instructions)
        elif match := _INSTRUCTION.match(text):
            operands = match[4].replace(".reuse", "")
            instructions.append(
                Instruction(
                    int(match[1], 16),
                    match[2][1:] if match[2] else None,
                    tuple(match[3].split(".")),
                    tuple(_split(operands)),
                    line,
                )
            )
    if not instructions:
        raise EmulatorError(f"no kernel {kernel} in the disassembly")
    return Program(kernel, tuple(instructions), labels, target[1] if target else "unknown", offset)


def load(cubin: bytes, kernel: str = "gemm") -> Program:
    """The instructions of a kernel in a CUBIN.

    Raises:
        EmulatorError: if nvdisasm is missing, or the CUBIN cannot be read.
    """
    return parse(disassemble(cubin), kernel, parameter_offset(cubin, kernel))


def _split(operands: str) -> list[str]:
    """Operands at the top level: commas inside brackets do not count."""
    result, depth, start = [], 0, 0
    for index, character in enumerate(operands):
        if character in "[({":
            depth += 1
        elif character in "])}":
            depth -= 1
        elif character == "," and depth == 0:
            result.append(operands[start:index].strip())
            start = index + 1
    rest = operands[start:].strip()
    return [*result, rest] if rest else result
