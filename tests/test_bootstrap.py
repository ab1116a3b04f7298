"""Behaviour of envs/bootstrap.py and of the pinned requirements.

The second half runs the real bootstrap, with its real pip, on a copy of envs/ whose requirements
are toy packages made here. Nothing uses a network.
"""

import ast
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from project import with_default_signals

ENVS = Path(__file__).resolve().parent.parent / "envs"
REQUIREMENTS = ENVS / "requirements"


def load_bootstrap():
    spec = importlib.util.spec_from_file_location("bootstrap", ENVS / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bootstrap = load_bootstrap()


# --- Which Python ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 1), (3, 13, 5), (3, 14, 2)])
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_supported_pythons_are_taken(version, platform):
    assert bootstrap.refusal(version, platform) is None


@pytest.mark.parametrize("version", [(3, 6, 8), (3, 10, 13), (3, 15, 0)])
def test_other_pythons_are_refused_in_one_sentence_that_says_which_will_do(version):
    text = bootstrap.refusal(version, "linux")
    assert "3.11 to 3.14" in text
    assert f"{version[0]}.{version[1]}" in text
    assert text.count(". ") == 0 and text.endswith(".")


def test_windows_is_sent_to_wsl():
    assert "WSL" in bootstrap.refusal((3, 12, 0), "win32")


def test_an_old_python_can_read_the_file_up_to_its_refusal():
    # Not a SyntaxError, that is. 3.7 is the oldest grammar that `ast` still knows.
    source = (ENVS / "bootstrap.py").read_text()
    ast.parse(source, feature_version=(3, 7))
    before_refusal = source[: source.index("sys.exit(")]
    assert "import fcntl" not in before_refusal  # Windows has none


# --- Which requirements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("snakemake --cores 1", ("default",)),
        ("python -m ladder plan", ("default",)),
        ("python script.py pytest", ("default",)),
        ("pytest -x", ("default", "test")),
        ("python -m pytest -x", ("default", "test")),
        ("ruff check", ("default", "test")),
        ("mypy workflow", ("default", "test")),
        ("snakefmt --check workflow", ("default", "test")),
    ],
)
def test_the_command_decides_about_the_test_set(command, expected):
    call = bootstrap.parse(command.split())
    assert bootstrap.sets_needed(call, (), gpu=lambda: False) == expected


def test_a_driver_that_answers_brings_the_gpu_set():
    call = bootstrap.parse(["snakemake"])
    assert bootstrap.sets_needed(call, (), gpu=lambda: True) == ("default", "gpu")


def test_an_installed_set_stays_and_asks_no_driver():
    def driver():
        raise AssertionError("asked")

    call = bootstrap.parse(["snakemake"])
    sets = bootstrap.sets_needed(call, ("default", "gpu", "test"), gpu=driver)
    assert sets == ("default", "gpu", "test")


def test_a_set_can_be_asked_for_by_hand():
    call = bootstrap.parse(["--with", "gpu", "snakemake", "--with", "test"])
    assert call == (frozenset({"gpu"}), ("snakemake", "--with", "test"))


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h", "pytest"]])
def test_usage_is_shown_without_a_command(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        bootstrap.parse(argv)
    assert stop.value.code == 0
    assert "snakemake --cores 1" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--wiht", "gpu", "x"], ["--with", "cuda", "x"], ["--with"]])
def test_an_unknown_option_is_an_error(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        bootstrap.parse(argv)
    assert stop.value.code == 2
    assert argv[0] in capsys.readouterr().err


HERE = {"format": 1, "python": "cpython-313-x86_64", "folder": "/a/.venv"}
DIGESTS = {"default": "d1", "gpu": "g1", "test": "t1"}
WHOLE = {**HERE, "sets": {"default": "d1", "test": "t1"}}


def test_a_whole_environment_needs_nothing():
    plan = bootstrap.make_plan(WHOLE, HERE, DIGESTS, ("default", "test"))
    assert plan.action == "nothing"


def test_a_missing_set_is_added_to_a_whole_environment():
    plan = bootstrap.make_plan(WHOLE, HERE, DIGESTS, ("default", "gpu", "test"))
    assert plan[:2] == ("add", ("gpu",))


@pytest.mark.parametrize(
    ("stamp", "why"),
    [
        (None, "first call"),
        ({}, "did not end"),
        (HERE, "did not end"),
        ({**WHOLE, "format": 0}, "bootstrap.py changed"),
        ({**WHOLE, "python": "cpython-312-x86_64"}, "cpython-312"),
        ({**WHOLE, "folder": "/b/.venv"}, "moved"),
        ({**WHOLE, "sets": {"default": "d0", "test": "t1"}}, "requirements changed"),
        ({**WHOLE, "sets": {"default": "d1", "gone": "x"}}, "requirements changed"),
    ],
)
def test_any_other_difference_means_a_fresh_start(stamp, why):
    plan = bootstrap.make_plan(stamp, HERE, DIGESTS, ("default", "test"))
    assert plan[:2] == ("remake", ("default", "test"))
    assert why in plan.why


# --- How pip is called ----------------------------------------------------------------------------


def test_the_users_pip_configuration_is_kept_but_for_other_destinations():
    environ = {"PIP_INDEX_URL": "mirror", "HTTPS_PROXY": "proxy", "PIP_TARGET": "x"}
    env = bootstrap.pip_environment(environ, compiles=True)
    assert env == {"PIP_INDEX_URL": "mirror", "HTTPS_PROXY": "proxy", "PIP_USER": "0"}


def test_extensions_are_skipped_only_where_none_can_be_compiled():
    assert bootstrap.pip_environment({"CC": "cc"}, compiles=True)["CC"] == "cc"
    env = bootstrap.pip_environment({"CC": "cc"}, compiles=False)
    assert (env["CC"], env["LDSHARED"]) == ("true", "true")


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: Temporary failure in name resolution", "cannot be reached"),
        ("ERROR: Could not find a version (from versions: none)", "cannot be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "mirror"),
        ("something new", "tells why"),
    ],
)
def test_a_failed_installation_says_what_to_do(output, advice):
    assert advice in bootstrap.advice(output)


def test_what_a_containers_user_lacks_is_in_the_environment():
    home = f"{bootstrap.VENV}/home"
    homeless = bootstrap.inside({}, bootstrap.User("uid7", has_home=False, can_write=False))
    assert (homeless["HOME"], homeless["LOGNAME"]) == (home, "uid7")
    reader = bootstrap.inside({"HOME": "/"}, bootstrap.User("uid7", has_home=True, can_write=False))
    assert (reader["HOME"], reader["XDG_CACHE_HOME"]) == ("/", f"{home}/.cache")


def test_a_users_own_name_and_home_are_kept():
    own = {"HOME": "/home/ada", "LOGNAME": "ada", "XDG_CACHE_HOME": "/scratch"}
    env = bootstrap.inside(own, bootstrap.User("x", has_home=True, can_write=True))
    assert own.items() <= env.items()


# --- The pinned files -----------------------------------------------------------------------------


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_names(path):
    """Names in a .in file."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return {normalized(re.match(r"[\w.-]+", line)[0]) for line in lines if line}


def requirements_of(path):
    """One string a requirement: name, version, marker and hashes; comments left out."""
    text = "\n".join(line for line in path.read_text().splitlines() if line.lstrip()[:1] != "#")
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def pins(path):
    """{name: version} of a .txt file."""
    matches = (re.match(r"([\w.-]+)==(\S+)", line) for line in requirements_of(path))
    return {normalized(match[1]): match[2] for match in matches}


PINNED = sorted(REQUIREMENTS.glob("*.txt"))
BY_NAME = pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)


def test_each_set_has_its_two_files():
    names = {"build", *bootstrap.SETS}
    assert {path.stem for path in PINNED} == names
    assert {path.stem for path in REQUIREMENTS.glob("*.in")} == names


@BY_NAME
def test_every_requirement_is_pinned_and_hashed(path):
    line = re.compile(r"[a-z0-9.-]+==[\w.]+( ; [^\\]+?)?( +--hash=sha256:[0-9a-f]{64})+ *")
    assert [text for text in requirements_of(path) if not line.fullmatch(text)] == []


@BY_NAME
def test_no_requirement_names_a_place(path):
    for file in (path, path.with_suffix(".in")):
        text = file.read_text()
        assert "://" not in text
        assert re.search(r"index-url|find-links|trusted-host|@ *file", text) is None


@BY_NAME
def test_every_direct_dependency_is_pinned(path):
    assert direct_names(path.with_suffix(".in")) <= pins(path).keys()


@BY_NAME
def test_every_direct_dependency_says_what_it_is_for(path):
    for line in path.with_suffix(".in").read_text().splitlines():
        if line and not line.startswith("#"):
            assert re.search(r" # \S+", line) or path.stem == "build", line


@pytest.mark.parametrize("name", ["gpu", "test"])
def test_the_sets_agree_with_the_default_set(name):
    default, other = pins(REQUIREMENTS / "default.txt"), pins(REQUIREMENTS / f"{name}.txt")
    shared = default.keys() & other.keys()
    assert shared
    assert {key: default[key] for key in shared} == {key: other[key] for key in shared}


def test_the_carried_pip_is_the_pinned_one():
    assert list(ENVS.glob("*.whl")) == [bootstrap.PIP]
    assert hashlib.sha256(bootstrap.PIP.read_bytes()).hexdigest() == bootstrap.PIP_SHA256


def test_conda_users_get_the_same_packages_and_a_supported_python():
    conda = yaml.safe_load((ENVS / "environment.yaml").read_text())
    python, _, pip = conda["dependencies"]
    oldest, end = re.fullmatch(r"python >=3\.(\d+),<3\.(\d+)", python).groups()
    assert (3, int(oldest)) == bootstrap.OLDEST
    assert (3, int(end) - 1) <= bootstrap.NEWEST
    file = ENVS / pip["pip"][0].removeprefix("-r ")
    assert file == bootstrap.REQUIREMENTS / "default.txt" and file.exists()


# --- The real thing, on toy packages --------------------------------------------------------------


def wheel_bytes(name, version, source, scripts=()):
    """A pure wheel of one module; each of `scripts` calls the module's main()."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\n"
        + "".join(f"{script} = {name}:main\n" for script in scripts),
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return buffer.getvalue()


# A source package whose build waits as long as the file "closed" is in the folder $GATE.
GATE_BACKEND = """
import os, pathlib, time
def build_wheel(folder, config_settings=None, metadata_directory=None):
    gate = pathlib.Path(os.environ["GATE"])
    (gate / "reached").touch()
    while (gate / "closed").exists():
        time.sleep(0.02)
    pathlib.Path(folder, "gate-1.0-py3-none-any.whl").write_bytes(bytes.fromhex("{wheel}"))
    return "gate-1.0-py3-none-any.whl"
"""


def gate_sdist_bytes():
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: gate\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
        "backend.py": GATE_BACKEND.replace("{wheel}", wheel_bytes("gate", "1.0", "").hex()),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"gate-1.0/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Project:
    """A copy of envs/ with toy requirements, in which the real bootstrap is run."""

    def __init__(self, root, packages):
        self.root, self.packages, self.gate = root, packages, packages / "gate"
        self.gate.mkdir(parents=True)
        (root / "envs" / "requirements").mkdir(parents=True)
        shutil.copy(ENVS / "bootstrap.py", root / "envs")
        (root / "envs" / bootstrap.PIP.name).symlink_to(bootstrap.PIP)
        (root / "workflow" / "ladder").mkdir(parents=True)
        (root / "workflow" / "ladder" / "__init__.py").touch()
        toy = "def main():\n    import sys\n    print('toy', *sys.argv[1:])\n"
        toy_wheel = "toy-1.0-py3-none-any.whl", wheel_bytes("toy", "1.0", toy, ["toy"])
        self.require("default", toy_wheel)
        self.require("gpu")
        self.require(
            "test", ("tester-1.0-py3-none-any.whl", wheel_bytes("tester", "1.0", toy, ["pytest"]))
        )
        self.require("build")

    def require(self, name, *files):
        """Make the set `name` hold these (file name, content) packages."""
        lines = []
        for file, content in files:
            (self.packages / file).write_bytes(content)
            package, version = file.removesuffix(".tar.gz").split("-")[:2]
            digest = hashlib.sha256(content).hexdigest()
            lines.append(f"{package}=={version} --hash=sha256:{digest}\n")
        (self.root / "envs" / "requirements" / f"{name}.txt").write_text("".join(lines))

    def require_gate(self):
        self.require("default", ("gate-1.0.tar.gz", gate_sdist_bytes()))

    def start(self, *command, **environ):
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.packages),
            "CUDA_VISIBLE_DEVICES": "",  # a driver on this machine finds no GPU
            "GATE": str(self.gate),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(self.packages),
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_INDEX": "1",
            **environ,
        }
        return subprocess.Popen(
            [sys.executable, str(self.root / "envs" / "bootstrap.py"), *command],
            env={key: value for key, value in env.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=with_default_signals,
        )

    def call(self, *command, **environ):
        return finish(self.start(*command, **environ))

    def start_and_reach_the_gate(self, *command):
        (self.gate / "closed").touch()
        process = self.start(*command)
        wait_until((self.gate / "reached").exists)
        (self.gate / "reached").unlink()
        return process

    def open_gate(self):
        (self.gate / "closed").unlink()

    def stamp(self):
        return json.loads((self.root / ".venv" / "bootstrap.json").read_text())

    def is_locked(self):
        with (self.root / ".venv.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def finish(process):
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(condition, timeout=60):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "my project", tmp_path / "packages")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project whose environment is there already; tests that use it do not change it."""
    folder = tmp_path_factory.mktemp("made")
    project = Project(folder / "project", folder / "packages")
    first = project.call("toy", "1", "--cores", "2", PYTHONDONTWRITEBYTECODE="1")
    assert (first.returncode, first.stdout) == (0, "toy 1 --cores 2\n"), first.stderr
    assert len(first.stderr.splitlines()) == 1 and "default requirements" in first.stderr
    return project


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """A project for tests that change its environment: each leaves a whole one to the next."""
    folder = tmp_path_factory.mktemp("lasting")
    return Project(folder / "project", folder / "packages")


def test_the_second_call_installs_nothing_says_nothing_and_is_fast(made):
    stamp = made.root / ".venv" / "bootstrap.json"
    before = stamp.stat()
    start = time.monotonic()
    second = made.call("toy")
    assert time.monotonic() - start < 3
    assert (second.returncode, second.stdout, second.stderr) == (0, "toy\n", "")
    after = stamp.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_command_runs_in_the_environment_and_finds_the_package(made):
    code = "import sys, ladder, toy; print(sys.prefix, ladder.__path__[0])"
    result = made.call("python", "-c", code, PYTHONPATH="/elsewhere")
    assert result.stdout.split() == [f"{made.root}/.venv", f"{made.root}/workflow/ladder"]


def test_what_is_installed_is_compiled_even_where_python_must_not(made):
    (toy,) = (made.root / ".venv").glob("lib/*/site-packages/toy.py")
    assert list(toy.parent.glob("__pycache__/toy.*.pyc"))


def test_a_subprocess_of_the_command_finds_the_same_python(made):
    result = made.call("sh", "-c", "command -v python; command -v toy; echo $VIRTUAL_ENV")
    venv = f"{made.root}/.venv"
    assert result.stdout.split() == [f"{venv}/bin/python", f"{venv}/bin/toy", venv]


def test_the_exit_status_is_the_commands_own(made):
    assert made.call("python", "-c", "raise SystemExit(7)").returncode == 7


def test_signals_are_the_commands_own(made):
    process = made.start("sleep", "60")
    command = Path(f"/proc/{process.pid}/comm")
    if not command.exists():
        pytest.skip("needs /proc")
    wait_until(lambda: command.read_text() == "sleep\n")  # the same process: exec, no child
    process.send_signal(signal.SIGTERM)
    assert finish(process).returncode == -signal.SIGTERM


def test_a_closed_pipe_ends_the_command_quietly(made):
    result = made.call("sh", "-c", "yes | head -n 1")
    assert (result.stdout, result.stderr) == ("y\n", "")


def test_nohup_protects_installation_and_command(project):
    script = f"trap '' HUP; exec '{sys.executable}' '{project.root}/envs/bootstrap.py' \"$@\""
    environ = {"PIP_FIND_LINKS": str(project.packages), "PIP_NO_INDEX": "1", "HOME": "/tmp"}
    code = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    result = subprocess.run(
        ["sh", "-c", script, "sh", "python", "-c", code],
        env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **environ},
        capture_output=True,
        text=True,
    )
    assert result.stdout == "SIG_IGN\n", result.stderr


def test_an_unknown_command_is_named(made):
    result = made.call("toyy")
    assert result.returncode == 127
    assert "toyy" in result.stderr


def test_the_test_set_is_added_when_pytest_is_called_and_stays(lasting):
    assert lasting.call("toy").returncode == 0
    added = lasting.call("pytest", "-x")
    assert (added.returncode, added.stdout) == (0, "toy -x\n")
    assert "adding" in added.stderr
    again = lasting.call("toy")
    assert again.stderr == ""
    assert lasting.stamp()["sets"].keys() == {"default", "test"}


def test_an_installation_killed_midway_is_mended(project):
    project.require_gate()
    process = project.start_and_reach_the_gate("python", "-c", "import gate")
    os.killpg(process.pid, signal.SIGKILL)
    finish(process)
    assert "sets" not in project.stamp()
    project.open_gate()
    mended = project.call("python", "-c", "import gate")
    assert mended.returncode == 0, mended.stderr
    assert "did not end" in mended.stderr


def test_a_pip_that_outlives_its_killed_bootstrap_is_waited_for(project):
    project.require_gate()
    first = project.start_and_reach_the_gate("true")
    first.kill()
    first.wait()
    second = project.start("python", "-c", "import gate")
    assert "waiting" in second.stderr.readline()
    assert project.is_locked()
    project.open_gate()
    assert finish(second).returncode == 0
    first.communicate()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_while_installing_ends_pip_too(project, number, status):
    project.require_gate()
    process = project.start_and_reach_the_gate("true")
    process.send_signal(number)
    assert finish(process).returncode == status
    wait_until(lambda: not project.is_locked(), timeout=10)


def test_two_calls_at_once_install_once(project):
    project.require_gate()
    first = project.start_and_reach_the_gate("python", "-c", "import gate")
    second = project.start("python", "-c", "import gate")
    waiting = second.stderr.readline()
    project.open_gate()
    assert [finish(first).returncode, finish(second).returncode] == [0, 0]
    assert "waiting" in waiting


def test_a_moved_project_gets_a_new_environment(made, project):
    shutil.rmtree(project.root)
    shutil.copytree(made.root, project.root, symlinks=True)
    moved = project.call("toy", PIP_FIND_LINKS=str(made.packages))
    assert (moved.returncode, moved.stdout) == (0, "toy\n")
    assert "moved" in moved.stderr


def test_an_environment_whose_python_is_gone_is_remade(lasting):
    assert lasting.call("toy").returncode == 0
    python = lasting.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert lasting.call("toy").returncode == 0


def test_changed_requirements_leave_nothing_of_the_old_ones(lasting):
    assert lasting.call("toy").returncode == 0
    lasting.require("default", ("new-2.0-py3-none-any.whl", wheel_bytes("new", "2.0", "")))
    code = "import new, importlib.util as u; print(u.find_spec('toy'))"
    changed = lasting.call("python", "-c", code)
    assert (changed.returncode, changed.stdout) == (0, "None\n"), changed.stderr
    assert "requirements changed" in changed.stderr


def test_a_file_with_another_hash_is_refused_and_the_next_call_mends(project):
    wheel = project.packages / "toy-1.0-py3-none-any.whl"
    good = wheel.read_bytes()
    wheel.write_bytes(wheel_bytes("toy", "1.0", "evil = 1"))
    refused = project.call("toy")
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr  # pip's own words
    assert "run the same command again" in refused.stderr.splitlines()[-1]
    wheel.write_bytes(good)
    assert project.call("toy").returncode == 0


def test_a_requirement_without_a_hash_is_refused(project):
    (project.root / "envs" / "requirements" / "default.txt").write_text("toy==1.0\n")
    assert project.call("toy").returncode == 1


def test_a_replaced_pip_is_not_run(project):
    pip = project.root / "envs" / bootstrap.PIP.name
    pip.unlink()
    pip.write_bytes(b"something else")
    result = project.call("toy")
    assert result.returncode == 1
    assert "damaged or was replaced" in result.stderr


def test_an_environment_of_the_users_own_is_left_alone(project):
    own = project.root / ".venv" / "own.txt"
    own.parent.mkdir()
    own.touch()
    result = project.call("toy")
    assert result.returncode == 1
    assert "made by something else" in result.stderr
    assert own.exists()


def test_the_environment_may_be_a_link_to_another_disk(project):
    disk = project.packages / "disk"
    disk.mkdir()
    (project.root / ".venv").symlink_to(disk)
    assert project.call("toy").returncode == 0
    project.require("default")
    assert project.call("true").returncode == 0  # remade, and still a link
    assert (project.root / ".venv").is_symlink() and (disk / "bin" / "python").exists()


@pytest.mark.parametrize("home", [None, "absent"])
def test_no_home_folder_is_needed(project, home):
    home = home and str(project.packages / home)
    result = project.call("toy", HOME=home, PIP_NO_CACHE_DIR=None)
    assert (result.returncode, result.stdout) == (0, "toy\n"), result.stderr
    assert not (project.root / "~").exists()
