"""`make install WHEELHOUSE=…`: install without a network, from a wheelhouse.

`make wheelhouse` makes the wheelhouse on another machine. The environment uses the torch that the running Python
imports, of any build, and its other packages if they are new enough. The clone is installed in editable mode, so that
`--user-dir fairseq_mtmoe` and `mtmoe` run the same code. Its compiled kernels come from the wheelhouse, so that no
compiler is needed. Packages in WHEELHOUSE-optional are installed, too.

This script needs only Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import NoReturn

CLONE = Path(__file__).resolve().parents[1]
KERNELS = "fairseq_mtmoe/moe/assignment/kernels/"
OLDEST_TORCH = (2, 6)
VERSION = re.compile(r'^__version__ = "(.*)"', re.MULTILINE)
WHERE_TORCH_IS = "import torch; print(torch.__version__, torch.__file__, sep='\\n')"


def refuse(name: str, rule: str, value: object) -> NoReturn:
    """Exit with a sentence that names the setting, its rule and its value."""
    sys.exit(f"`{name}` must be {rule}, but is {value} instead.")


def find_wheel(wheelhouse: Path) -> Path:
    """Return this project's wheel, which must fit this Python and the clone."""
    found = sorted(wheelhouse.glob("fairseq_mtmoe-*.whl"))
    if not found:
        refuse("WHEELHOUSE", "a folder that `make wheelhouse` made", wheelhouse)
    _, version, tag = found[-1].name.split("-")[:3]
    if tag != f"cp{sys.version_info.major}{sys.version_info.minor}":
        refuse("PYTHON", f"Python 3.{tag.removeprefix('cp3')}, for which the wheelhouse is",
               f"{sys.executable}, {'.'.join(map(str, sys.version_info[:2]))},")  # fmt: skip
    text = (CLONE / "fairseq_mtmoe" / "__init__.py").read_text(encoding="utf-8")
    clone = VERSION.findall(text)[0]
    if version != clone:
        refuse("WHEELHOUSE", f"of version {clone} like this clone", f"of {version}")
    return found[-1]


class NoTorch(Exception):
    """A Python cannot import torch; the message is its error."""


def find_torch(python: str) -> tuple[str, Path]:
    """Return the version of a Python's torch, and the folder with its packages."""
    run = subprocess.run([python, "-c", WHERE_TORCH_IS], capture_output=True, text=True)
    if run.returncode:
        raise NoTorch((run.stderr.splitlines() or [f"exit status {run.returncode}"])[-1])
    version, file = run.stdout.splitlines()[-2:]
    return version, Path(file).parents[1]


def torch_to_use(is_in_wheelhouse: bool) -> Path | None:
    """Return the folder of the running Python's torch.

    None to install the wheelhouse's.
    """
    try:
        version, folder = find_torch(sys.executable)
        problem = "" if is_new_enough(version) else f"whose torch is {version}"
    except NoTorch as error:
        problem = f"which reports {str(error)!r}"
    if not problem:
        print(f"Using the installed torch {version} in {folder}.")
        return folder
    if not is_in_wheelhouse:
        refuse("PYTHON", "a Python that imports torch 2.6 or newer", f"{sys.executable}, {problem},")
    return None


def is_new_enough(version: str) -> bool:
    """Return whether a torch version such as 2.6.0a0+ecf3.nv25.1 is new enough."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= OLDEST_TORCH


def make_environment(folder: Path, torch: Path | None) -> str:
    """Make an environment that sees the running Python's packages and torch.

    Return its Python.
    """
    venv.EnvBuilder(system_site_packages=True, with_pip=True, symlinks=True).create(folder)
    python = str(folder / "bin" / "python")
    (site,) = folder.glob("lib/python3*/site-packages")
    pointer = site / "torch_of_this_machine.pth"
    pointer.unlink(missing_ok=True)
    if torch is not None and not sees_torch(python):  # torch is in another environment
        pointer.write_text(f"{torch}\n", encoding="utf-8")
    return python


def sees_torch(python: str) -> bool:
    """Return whether an interpreter imports torch."""
    try:
        find_torch(python)
    except NoTorch:
        return False
    return True


def pip_install(python: str, folders: list[Path], *arguments: str) -> None:
    """Install only from these folders, without the machine's pip settings."""
    links = [part for folder in folders for part in ("--find-links", str(folder))]
    command = [python, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "-q", "--no-index"]
    command += ["--no-warn-conflicts", *links]  # fairseq's and ours are expected: omitted packages are optional
    no_compiler = {"CC": "false", "CXX": "false"}  # our kernels come from the wheel
    subprocess.run([*command, *arguments], check=True, env={**os.environ, **no_compiler, "PIP_CONFIG_FILE": os.devnull})


def unpack_kernels(wheel: Path, folder: Path) -> None:
    """Put a wheel's compiled kernels where the clone looks for them."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.startswith(KERNELS) and name.endswith(".so")]
        for name in names:
            (folder / name).unlink(missing_ok=True)  # a running process keeps the old file
        file.extractall(folder, names)


def main(wheelhouse: Path, environment: Path) -> None:
    """Make the environment, and install the wheelhouse and the folders beside it."""
    wheel = find_wheel(wheelhouse)
    beside = [wheelhouse.with_name(wheelhouse.name + suffix) for suffix in ("-optional", "-torch")]
    folders = [wheelhouse, *(folder for folder in beside if folder.is_dir())]
    python = make_environment(environment, torch_to_use(is_in_wheelhouse=beside[-1] in folders))
    pip_install(python, folders, *(part for folder in folders for part in ("-r", str(folder / "requirements.txt"))))
    pip_install(python, folders, "--no-deps", "fairseq-fixed")
    pip_install(python, folders, "--no-deps", "--no-build-isolation", "-e", str(CLONE))
    unpack_kernels(wheel, CLONE)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
