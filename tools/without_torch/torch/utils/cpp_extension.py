"""Stands in for torch's module of this name while the wheelhouse builds fairseq.

fairseq's C++ extensions for torch (libbase, libnat) run with the one build of torch that compiled them, and
nothing of ours uses them. Leaving them out lets one wheel serve every torch, and needs none where it is built.
"""

from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class CppExtension(Extension):
    """An extension that is not built."""

    def __init__(self, name: str, sources: list[str], **_: Any):
        super().__init__(name, sources=[])


class BuildExtension(build_ext):
    """Builds the others."""

    def finalize_options(self) -> None:
        """As setuptools', without those that stand for torch's."""
        super().finalize_options()
        self.extensions = [extension for extension in self.extensions if not isinstance(extension, CppExtension)]
