"""`make wheelhouse`: collect the wheels for an install without a network.

The wheels fit the running Python. FOLDER gets required packages, and FOLDER-optional optional ones. Each has a
requirements.txt, which `tools/offline.py` installs. torch is left out, because a node has the build for its GPUs;
`--torch` puts it into FOLDER-torch.

Needs pip, setuptools, wheel, cython and numpy, which `make wheelhouse` installs.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOOLS = Path(__file__).parent
CLONE = TOOLS.parent
FAIRSEQ = "fairseq-fixed==0.12.3.1"
LEFT_OUT = {
    "torch": "the node has its own",
    "torchaudio": "fairseq requires it, but nothing here uses it",
    "cython": "only fairseq's build needs it",
    "peft": "it requires torch, and only a benchmark and its test use it",
}
OPTIONAL = ("altair", "vl-convert-python", "scikit-learn")  # charts · a fairseq criterion and task
OPTIONAL_EXTRAS = ("demo", "nlu", "serve", "test")
NEEDS_TORCH = ("fairscale",)  # collected without its requirements, or pip would fetch torch
BACKEND = "setuptools>=70"  # builds the clone's editable install
SCIENTIFIC = (
    "criterions/sentence_prediction.py",
    "tasks/audio_classification.py",
)  # fairseq imports all of its modules
SCIENCE = re.compile(r"^(from (?:sklearn|scipy)\b.*)$", re.MULTILINE)


def split(requirements: list[Requirement]) -> tuple[list[str], list[str]]:
    """Return needed and optional requirements.

    Extras of needed packages are optional (such as dictionaries).
    """
    needed, optional = {}, {}
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        if name in OPTIONAL or _is_of_an_extra(requirement):
            if _is_wanted(requirement):
                optional[_text(requirement)] = None
            continue
        if requirement.extras:
            optional[_text(requirement)] = None
            requirement.extras = set()
        needed[_text(requirement)] = None
    return list(needed), list(optional)


def _is_of_an_extra(requirement: Requirement) -> bool:
    return requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})


def _is_wanted(requirement: Requirement) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *OPTIONAL_EXTRAS))


def _text(requirement: Requirement) -> str:
    requirement.marker = None  # already evaluated for the running Python
    return str(requirement)


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return a wheel's requirements, with extras."""
    with zipfile.ZipFile(wheel) as file:
        info = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
        return [Requirement(line) for line in PathDistribution(zipfile.Path(file, f"{info}/")).requires or ()]


def pip_wheel(folder: Path, *arguments: str, **environment: str) -> None:
    """Collect wheels in a folder, in the versions of constraints.txt.

    Pip builds missing wheels.
    """
    command = [sys.executable, "-m", "pip", "wheel", "-q", "-c", str(CLONE / "constraints.txt"), "-w", str(folder)]
    subprocess.run([*command, *arguments], check=True, env={**os.environ, **environment})


def build_ours(folder: Path) -> Path:
    """Build this project's wheel from a copy of the sources.

    The copy has no compiled files of the clone.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("setup.py", "pyproject.toml", "README.md"):
            shutil.copy(CLONE / name, scratch)
        built = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(CLONE / "fairseq_mtmoe", Path(scratch, "fairseq_mtmoe"), ignore=built)
        pip_wheel(folder, "--no-deps", "--no-build-isolation", scratch)
    return next(folder.glob("fairseq_mtmoe-*.whl"))


def build_fairseq(folder: Path) -> Path:
    """Build fairseq's wheel without torch extensions.

    It needs no scikit-learn and scipy (45 MB) to be imported.
    """
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "built")
        pip_wheel(built, "--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", "fairseq-fixed", FAIRSEQ,
                  PYTHONPATH=str(TOOLS / "without_torch"))  # fmt: skip
        run = [sys.executable, "-m", "wheel"]
        subprocess.run([*run, "unpack", "-d", scratch, *map(str, built.glob("*.whl"))], check=True, stdout=sys.stderr)
        (tree,) = Path(scratch).glob("fairseq_fixed-*")
        for module in SCIENTIFIC:
            make_science_optional(tree / "fairseq" / module)
        subprocess.run([*run, "pack", "-d", str(folder), str(tree)], check=True, stdout=sys.stderr)
    return next(folder.glob("fairseq_fixed-*.whl"))


def make_science_optional(module: Path) -> None:
    """Let a module be imported without scikit-learn and scipy; uses of them then fail."""
    text, count = SCIENCE.subn(r"try:\n    \1\nexcept ImportError:\n    pass", module.read_text(encoding="utf-8"))
    assert count, f"{module} no longer imports scikit-learn or scipy"
    module.write_text(text, encoding="utf-8")


def build(needed: Path, optional: Path, torch: Path | None) -> None:
    """Fill the folders, which must exist and be empty."""
    wanted, extra = split([*requirements_of(build_fairseq(needed)), *requirements_of(build_ours(needed))])
    wanted.append(BACKEND)
    alone = [line for line in extra if line.startswith(NEEDS_TORCH)]
    pip_wheel(needed, *wanted)
    pip_wheel(optional, "--find-links", str(needed), *(line for line in extra if line not in alone))
    pip_wheel(optional, "--no-deps", *alone)
    for wheel in optional.glob("*.whl"):
        if (needed / wheel.name).exists():
            wheel.unlink()
    write_lines(needed / "requirements.txt", wanted)
    write_lines(optional / "requirements.txt", extra)
    if torch is not None:
        pip_wheel(torch, "torch")
        write_lines(torch / "requirements.txt", ["torch"])


def write_lines(path: Path, lines: list[str]) -> None:
    """Write a text file with these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def megabytes(paths: list[Path]) -> str:
    """Return the total size of files as text."""
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", action="store_true", help="also collect torch, into FOLDER-torch")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    final = {suffix: folder.with_name(folder.name + suffix) for suffix in ("", "-optional", "-torch")}
    if not arguments.torch:
        del final["-torch"]
    there = next((path for path in final.values() if path.exists()), None)
    if there is not None:
        sys.exit(f"`{there}` must not exist yet, but does: remove or rename it first.")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheelhouse-") as scratch:
        folders = {suffix: Path(scratch, f"wheels{suffix}") for suffix in final}
        for path in folders.values():
            path.mkdir()
        build(folders[""], folders["-optional"], folders.get("-torch"))
        for suffix, path in folders.items():
            shutil.move(path, final[suffix])
    report(list(final.values()))


def report(folders: list[Path]) -> None:
    """Print the wheels, their sizes and the packages that were left out."""
    for folder in folders:
        wheels = sorted(folder.glob("*.whl"), key=lambda path: -path.stat().st_size)
        large = ", ".join(f"{path.name.split('-')[0]} {megabytes([path])}" for path in wheels[:4])
        print(f"{folder}: {len(wheels)} wheels, {megabytes(wheels)} ({large}, …)")
    for name, reason in LEFT_OUT.items():
        print(f"left out: {name} ({reason})")
    print("left out: fairseq's libbase and libnat (bound to one build of torch; nothing here uses them)")
    libc = " ".join(platform.libc_ver())
    version = ".".join(platform.python_version_tuple()[:2])
    print(
        f"For Python {version} on {platform.machine()} with {libc} or newer. On the node, in a clone of this project:"
    )
    print(f"  make install WHEELHOUSE={folders[0].name}")


if __name__ == "__main__":
    main()
