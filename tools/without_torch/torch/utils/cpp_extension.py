"""Replacement of torch's module of this name while the wheelhouse builds fairseq.

fairseq's C++ extensions for torch (libbase, libnat) run only with the build of torch that compiled them, and we do not
use them. Without them, one wheel serves every torch, and its build needs no torch.
"""

from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class CppExtension(Extension):
    """An extension that `BuildExtension` skips."""

    def __init__(self, name: str, sources: list[str], **_: Any):
        super().__init__(name, sources=[])


class BuildExtension(build_ext):
    """A build of all other extensions."""

    def finalize_options(self) -> None:
        """Finalize as setuptools does, without torch's extensions."""
        super().finalize_options()
        self.extensions = [extension for extension in self.extensions if not isinstance(extension, CppExtension)]
