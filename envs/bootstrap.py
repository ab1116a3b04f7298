#!/usr/bin/env python3
"""Run a command inside the project's own environment, making that first where needed.

    python3 envs/bootstrap.py snakemake --cores 1     the experiment
    python3 envs/bootstrap.py pytest                  the tests
    python3 envs/bootstrap.py python -m ladder ...    one step by hand

The environment is .venv at the root of the project. It holds exactly the pinned, hashed packages
of envs/requirements:

    default   always
    gpu       when an NVIDIA driver answers
    test      when the command is pytest, ruff, mypy or snakefmt

`--with gpu` or `--with test` before the command adds a set by hand, for instance on a login node
that has a network but no GPU. The next calls install nothing and start at once. The exit status
and signals are the command's own. pip's configuration (mirror, proxy, cache) is respected.
"""

# Only the standard library, since this runs before anything is installed. The syntax down to
# `refusal` must be readable for Python 3.6, or users of old systems see a SyntaxError instead.
# ruff: noqa: E402
import sys

OLDEST, NEWEST = (3, 11), (3, 14)


def refusal(version: "tuple[Any, ...]", platform: str) -> "str | None":
    """Return why this interpreter cannot be used, as one sentence, or None when it can."""
    if platform == "win32":
        return "Windows itself is not supported: run the same command inside WSL 2."
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    return (
        "Python {}.{} to {}.{} is needed and this is {}.{}: run the same command with another one, "
        "for example python{}.{}."
    ).format(*OLDEST, *NEWEST, *version[:2], *NEWEST)


_reason = refusal(sys.version_info, sys.platform)
if _reason:
    sys.exit("bootstrap: " + _reason)

import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import signal
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "bootstrap.json"
LOCK = ROOT / ".venv.lock"  # beside .venv, since remaking empties that
REQUIREMENTS = ROOT / "envs" / "requirements"

# One pip for everybody, run straight from its wheel: Debian's python3 has neither pip nor
# ensurepip, and is "externally managed"; other systems have many versions of both.
PIP = ROOT / "envs" / "pip-26.3-py3-none-any.whl"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"

SETS = ("default", "gpu", "test")
TEST_TOOLS = frozenset({"mypy", "pytest", "ruff", "snakefmt"})
STAMP_FORMAT = 1  # raise it when this file starts to fill .venv differently


# --- What to install ------------------------------------------------------------------------------


Stamp = Mapping[str, Any]  # what .venv holds and is tied to; see `identity` and `install`


class Call(NamedTuple):
    """The command line: sets asked for by hand, and the command with its arguments."""

    extra: frozenset[str]
    command: tuple[str, ...]


class User(NamedTuple):
    """Whose call this is, and whether there is a home folder and room in it for caches."""

    name: str
    has_home: bool
    can_write: bool


class Plan(NamedTuple):
    """What has to happen to .venv. `action` is "nothing", "add" (more sets) or "remake"."""

    action: str
    sets: tuple[str, ...]
    why: str


def parse(argv: Sequence[str]) -> Call:
    """Split the command line. Everything from the first word that is no option is the command.

    Raises SystemExit with the usage (status 0) for no arguments and --help, and with status 2 for
    an unknown option or set.
    """
    extra, rest = set(), list(argv)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-h", "--help"):
            rest.clear()
        elif option == "--with" and rest and rest[0] in SETS:
            extra.add(rest.pop(0))
        else:
            print(f"bootstrap: not understood: {option} (see --help)", file=sys.stderr)
            raise SystemExit(2)
    if not rest:
        print(__doc__.strip())
        raise SystemExit(0)
    return Call(frozenset(extra), tuple(rest))


def tool_of(command: Sequence[str]) -> str:
    """Return the tool that a command runs: `pytest` for `pytest -x` and for `python -m pytest`."""
    if command[0].startswith("python") and len(command) > 2 and command[1] == "-m":
        return command[2]
    return command[0]


def sets_needed(call: Call, installed: Iterable[str], gpu: Callable[[], bool]) -> tuple[str, ...]:
    """Return the sets to be present, in order. A set once installed stays, and asks no driver."""
    wanted = {"default", *call.extra, *installed}
    if tool_of(call.command) in TEST_TOOLS:
        wanted.add("test")
    if "gpu" not in wanted and gpu():
        wanted.add("gpu")
    return tuple(name for name in SETS if name in wanted)


def gpu_answers() -> bool:
    """Return whether an NVIDIA driver finds a GPU. Makes no CUDA context; takes under 1 ms."""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    ok = cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    return ok and count.value > 0


def requirement_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each set's pinned file."""
    return {
        name: hashlib.sha256((folder / f"{name}.txt").read_bytes()).hexdigest() for name in SETS
    }


def identity() -> dict[str, object]:
    """Return what an environment is tied to: this file's format, the Python, the place."""
    python = f"{sys.implementation.cache_tag}{sys.abiflags}-{os.uname().machine}"
    return {"format": STAMP_FORMAT, "python": python, "folder": str(VENV)}


def make_plan(
    stamp: Stamp | None,
    here: Mapping[str, object],
    digests: Mapping[str, str],
    sets: tuple[str, ...],
) -> Plan:
    """Compare the stamp of .venv with what is needed here.

    A stamp without "sets" is that of an installation which did not end. Anything but a missing
    set means a fresh start: only then is .venv exactly what the pinned files say.
    """
    if stamp is None:
        return Plan("remake", sets, "first call")
    if not stamp.get("sets"):
        return Plan("remake", sets, "the last installation did not end")
    if stamp.get("format") != here["format"]:
        return Plan("remake", sets, "envs/bootstrap.py changed")
    if stamp.get("python") != here["python"]:
        return Plan("remake", sets, f"it was made by {stamp.get('python')}")
    if stamp.get("folder") != here["folder"]:
        return Plan("remake", sets, "the project was moved")
    if any(digests.get(name) != digest for name, digest in stamp["sets"].items()):
        return Plan("remake", sets, "the pinned requirements changed")
    missing = tuple(name for name in sets if name not in stamp["sets"])
    return Plan("add", missing, "not there yet") if missing else Plan("nothing", (), "")


# --- The state of .venv ---------------------------------------------------------------------------


def read_stamp() -> Stamp | None:
    """Return the stamp, {} for an environment that is not whole, or None where there is none.

    Raises SystemExit for a .venv which this file did not make, rather than delete it.
    """
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if VENV.is_dir() and any(VENV.iterdir()):
            fail(f"{VENV} was made by something else: delete or rename it, then try again.")
        return None
    except ValueError:
        return {}
    return stamp if PYTHON.exists() and isinstance(stamp, dict) else {}


def write_stamp(content: Stamp) -> None:
    """Replace the stamp in one step, so that a reader sees the old or the new one."""
    part = STAMP.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(part, STAMP)


@contextmanager
def sole_installer() -> Iterator[int]:
    """Hold the lock of all who change .venv; yield its file descriptor.

    pip and the compiler inherit the descriptor. So if this process is killed and one of them lives
    on, the lock stays until it too has ended, and nobody empties .venv under it.
    """
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another installation into .venv")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # some cluster file systems are mounted without locks
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
            say("this file system has no locks: start only one installation at a time")
        yield file.fileno()


def empty_environment() -> None:
    """Empty .venv but for its stamp. The folder itself stays: it may be a link to another disk."""
    for path in VENV.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != STAMP:
            path.unlink()


def create_environment() -> None:
    """Make an empty virtual environment in which `import ladder` finds workflow/ladder."""
    try:
        import venv
    except ImportError:
        fail("this Python lacks its `venv` module: install it (Debian: python3-venv), try again.")
    folder = VENV.resolve()  # venv refuses a link, and "../.." below starts from the real place
    try:
        venv.EnvBuilder(symlinks=True, with_pip=False, prompt=ROOT.name).create(folder)
    except ValueError as error:  # a ":" in the path
        fail(str(error))
    site = site_packages(folder)
    # A relative path needs no encoding, which older Pythons would take from the locale.
    (site / "ladder.pth").write_text(os.path.relpath(ROOT / "workflow", site) + "\n")


def site_packages(folder: Path) -> Path:
    """Return where an environment keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))


# --- pip ------------------------------------------------------------------------------------------


def check_pip() -> None:
    """Check the carried pip before it is run. Raises SystemExit when it is not the pinned one."""
    if hashlib.sha256(PIP.read_bytes()).hexdigest() != PIP_SHA256:
        fail(f"{PIP} is damaged or was replaced: restore it with `git checkout -- envs`.")


def pip_command(sets: Iterable[str]) -> list[str]:
    """Return the command that installs whole sets, and nothing whose hash is not in their files.

    It compiles no bytecode: `compile_command` does, on all cores.
    """
    command = [str(PYTHON), str(PIP / "pip"), "install", "--require-hashes", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]
    command += ["--build-constraint", str(REQUIREMENTS / "build.txt")]
    for name in sets:
        command += ["-r", str(REQUIREMENTS / f"{name}.txt")]
    return command


def compile_command(site: Path) -> list[str]:
    """Return the command that compiles all installed modules but for the packages' own tests.

    Python itself would compile a module at its first import, and again in each process where
    PYTHONDONTWRITEBYTECODE is set, as in many container images.
    """
    command = [str(PYTHON), "-m", "compileall", "-qq", "-j", "0"]
    return [*command, "-x", re.escape(str(site)) + r"/.*/tests/", str(site)]


def pip_environment(environ: Mapping[str, str], compiles: bool) -> dict[str, str]:
    """Return pip's variables: the user's own, less what would install elsewhere.

    compiles: whether C extensions can be built. If not, `true` takes the compiler's place: the one
    package with an extension but no wheel for Python 3.14, immutables, runs without it.
    """
    elsewhere = ("PIP_PREFIX", "PIP_PYTHON", "PIP_ROOT", "PIP_TARGET")
    env = {key: value for key, value in environ.items() if key not in elsewhere}
    env["PIP_USER"] = "0"  # `user = true` in a pip.conf, usual on clusters, fails in a venv
    if not compiles:
        env |= {"CC": "true", "LDSHARED": "true"}
    return env


def can_compile() -> bool:
    """Return whether there are a C compiler and Python's headers (Debian: python3-dev)."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(compiler.split()[0]) is not None and header.exists()


def run_pip(sets: Iterable[str], lock: int) -> None:
    """Install sets with pip, and compile what it installed.

    Raises SystemExit with pip's status, after its whole output and some advice, when pip fails.
    """
    status, output = run_tool(pip_command(sets), lock)
    if status:
        sys.stderr.write(output)
        fail(f"the installation failed. {advice(output)}", status)
    # Its status is none of ours: a package may carry templates that are no Python.
    run_tool(compile_command(site_packages(VENV.resolve())), lock)


def run_tool(command: Sequence[str], lock: int) -> tuple[int, str]:
    """Run a command that changes .venv; on a terminal show its progress on one line.

    Returns its exit status and its output.
    """
    import subprocess

    output = []
    with subprocess.Popen(
        command,
        env=inside(pip_environment(os.environ, can_compile()), this_user()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
    ) as tool:
        try:
            for line in tool.stdout or ():
                output.append(line)
                show_progress(line)
        except BaseException:  # a signal: let nothing go on without us
            tool.terminate()
            raise
    show_progress("")
    return tool.returncode, "".join(output)


def advice(output: str) -> str:
    """Return what to do about a failed installation, from what pip said."""
    again = "Then run the same command again: it starts afresh."
    if "No space left" in output or "Disk quota exceeded" in output:
        return f"The disk is full: free a few GB in {VENV} and in the temporary folder. {again}"
    if "DO NOT MATCH THE HASHES" in output:
        return (
            "A downloaded file is not the one that was pinned: a broken download, a stale cache "
            f"(try PIP_NO_CACHE_DIR=1), or a mirror that serves other files. {again}"
        )
    unreachable = ("onnection", "timed out", "ProxyError", "SSLError", "(from versions: none)")
    if any(word in output for word in unreachable):
        return (
            "The package index cannot be reached: check the network; behind a proxy set "
            f"HTTPS_PROXY; a mirror belongs in pip's own configuration. {again}"
        )
    return f"pip's output above tells why. {again}"


# --- The edges: messages, signals, the command ----------------------------------------------------


def say(text: str) -> None:
    """Print a message. On stderr, since stdout belongs to the command."""
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


def fail(text: str, status: int = 1) -> NoReturn:
    """Print a message and end with a status."""
    say(text)
    raise SystemExit(status)


def show_progress(line: str) -> None:
    """Show a line of pip in place of the one before, on a terminal only; "" wipes it."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        text = " ".join(line.split())[:width]
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def this_user() -> User:
    """Look up who runs this; in a container that may be a bare number with no home folder."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid{os.getuid()}"
    try:
        home = Path.home()
    except RuntimeError:
        return User(name, has_home=False, can_write=False)
    return User(name, has_home=True, can_write=os.access(home, os.W_OK))


def inside(environ: Mapping[str, str], user: User) -> dict[str, str]:
    """Return the variables of a process inside .venv.

    PYTHONPATH and PYTHONHOME go, as cluster modules set them: they would put other packages before
    the pinned ones. Snakemake and Matplotlib need a user name and a folder for caches: what a
    container's user lacks of these, .venv provides.
    """
    env = {key: val for key, val in environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = os.pathsep.join([str(VENV / "bin"), environ.get("PATH", os.defpath)])
    env.setdefault("LOGNAME", user.name)
    if not user.has_home:
        env["HOME"] = str(VENV / "home")
    elif not user.can_write:
        env.setdefault("XDG_CACHE_HOME", str(VENV / "home" / ".cache"))
    return env


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP end an installation as Ctrl-C does, so that pip is ended too.

    Under nohup SIGHUP is ignored; that must stay so, here and in the command.
    """

    def stop(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def install(call: Call) -> None:
    """Bring .venv to what the call needs, unless another process has just done so.

    The stamp says "not whole" before the first change and is complete after the last one, so an
    interruption at any moment is seen by the next call.
    """
    stop_on_signals()
    with sole_installer() as lock:
        here, digests = identity(), requirement_digests(REQUIREMENTS)
        plan, sets = survey(call, here, digests)
        if plan.action == "nothing":
            return
        check_pip()
        VENV.mkdir(exist_ok=True)
        write_stamp(here)
        version = "{}.{}".format(*sys.version_info[:2])
        names = " + ".join(plan.sets)
        if plan.action == "add":
            say(f"adding to .venv: {names} requirements ({plan.why})")
        else:
            say(f"making .venv: {names} requirements for Python {version} ({plan.why})")
            empty_environment()
            create_environment()
        run_pip(plan.sets, lock)
        write_stamp({**here, "sets": {name: digests[name] for name in sets}})


def survey(
    call: Call, here: Mapping[str, object], digests: Mapping[str, str]
) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan for .venv as it is now, and all the sets that it will hold."""
    stamp = read_stamp()
    sets = sets_needed(call, (stamp or {}).get("sets", ()), gpu_answers)
    return make_plan(stamp, here, digests, sets), sets


def run(command: Sequence[str]) -> NoReturn:
    """Become the command, inside .venv. Raises SystemExit(127) when there is no such command."""
    env = inside(os.environ, this_user())
    program = shutil.which(command[0], path=env["PATH"])
    if program is None:
        fail(f"no command named {command[0]} in .venv or on this machine", 127)
    # Python ignores these two, and what is ignored stays so across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(program, [program, *command[1:]], env)


def main(argv: Sequence[str]) -> NoReturn:
    """Install what is missing, then run the command. Raises SystemExit on any failure."""
    call = parse(argv)
    try:
        plan, _ = survey(call, identity(), requirement_digests(REQUIREMENTS))
        if plan.action != "nothing":
            install(call)
        run(call.command)
    except KeyboardInterrupt:
        fail("interrupted; the next call starts afresh.", 130)
    except OSError as error:
        fail(f"{error}. The project's folder and its .venv must be writable, and not full.")


if __name__ == "__main__":
    main(sys.argv[1:])
