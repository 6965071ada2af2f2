"""Packaging of fairseq_mtmoe. Tools are configured in pyproject.toml, tested versions are in constraints.txt."""

import platform
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

HERE = Path(__file__).parent
VERSION = {}
for line in (HERE / "fairseq_mtmoe" / "__init__.py").read_text(encoding="utf-8").splitlines():
    if line.startswith("__version__"):
        exec(line, VERSION)

KERNELS = "fairseq_mtmoe/moe/assignment/kernels"
HEADERS = ("augmenting_paths", "central_prices", "dual_solver", "scores", "simd")
# One library for each length of vectors, so that one build runs at full speed on every node of a cluster. The flags are
# what torch looks for when it says that a processor has AVX2 or AVX512, which is how kernels/__init__.py chooses.
INSTRUCTION_SETS = {
    "_assignment": [],
    "_assignment_avx2": ["-mavx2", "-mfma"],
    "_assignment_avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


class BuildKernels(build_ext):
    """Builds what a compiler can make faster; without one the same is done by torch."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError) as error:
            self.warn(f"{ext.name} was not built: balanced assignment on a CPU takes about ten times as long. {error}")


setup(
    name="fairseq_mtmoe",
    version=VERSION["__version__"],
    description="Sparse multilingual translation and multi-task learning with BASE layers, as a fairseq plugin",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11,<3.14",
    packages=find_namespace_packages(include=["fairseq_mtmoe", "fairseq_mtmoe.*"]),
    package_data={"fairseq_mtmoe": ["**/*.md", "**/*.json", "**/*.yaml", "**/*.j2", "**/*.css", "**/*.js", "py.typed"]},
    ext_modules=[
        Extension(  # a plain library, loaded by ctypes: it includes no headers of Python or torch
            f"fairseq_mtmoe.moe.assignment.kernels.{name}",
            sources=[f"{KERNELS}/assignment.cpp"],
            depends=[f"{KERNELS}/{name}.h" for name in HEADERS],
            language="c++",
            extra_compile_args=["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-Wno-psabi", *flags],
            optional=True,
        )
        for name, flags in INSTRUCTION_SETS.items()
        if IS_X86 or not flags
    ],
    cmdclass={"build_ext": BuildKernels},
    install_requires=[
        "torch>=2.6",  # tensors and gradients; from 2.6 on, loading a file runs no code
        "numpy>=1.26",  # sampling of language pairs
        "sacrebleu[ja,ko]>=2.4",  # BLEU and chrF++ with signatures, Japanese and Korean words included
        "sentencepiece>=0.2",  # subword models
        "protobuf>=4.25",  # the messages of their files
        "click>=8.1",  # the command line
        "polib>=1.2",  # reads translation catalogs
        "rich>=13",  # progress bars and tables on the screen
        "altair>=6",  # charts of runs
        "vl-convert-python>=1.9",  # their pictures, and what draws them on the report's page
        "PyYAML>=6",  # the table of tasks
        "tabulate>=0.9",  # tables in Markdown
        "fonttools>=4.50",  # which script a letter belongs to, as Unicode says
        "fsspec>=2024.6",  # unpacks corpora: compressed files, tar and zip archives; torch brings it anyway
        "regex>=2024.5",  # ends of sentences in any script; sacrebleu brings it anyway
        "xxhash>=3.4",  # keys of sentences: a hash that is the same everywhere
        "langcodes>=3.5",  # which of a model's language codes a corpus's is, by BCP 47; pure Python, nothing else
        "pydantic>=2.10",  # checks values of files and options against annotations
        "typing_extensions>=4.12",  # the dictionaries that it checks; pydantic and torch bring it anyway
        "Jinja2>=3.1",  # a report's page: what it puts into HTML is escaped; torch brings it anyway
    ],
    extras_require={
        # fairseq has two distributions, and pip cannot take either as it is: see docs/start/install.md.
        "fairseq": ["fairseq-fixed>=0.12.3"],
        "demo": [  # packages whose translation catalogs are the demo's text
            "pycountry>=24",
            "Django>=5",
            "Sphinx>=8",
            "matplotlib>=3.8",  # its documentation is text of the tasks of `make demo-glue`
        ],
        "corpora": [  # `mtmoe download` and `mtmoe prepare corpora`
            "requests>=2.32",  # downloads, resumed; long established, and brings the certificates that it checks
            "urllib3>=2.6.3",  # its tries; requests brings it anyway
            "mtdata>=0.5",  # the index of published parallel text that the field uses, with addresses and citations
            "py3langid>=0.4",  # identifies the language of a sample; brings its model
            "backports.zstd>=1.0; python_version < '3.14'",  # unpacks Zstandard as Python 3.14 does
        ],
        "datasets": [
            "pyarrow>=18",  # tables of Arrow and Parquet, as Hugging Face's `datasets` writes them
        ],
        "cluster": [
            "dask[distributed]>=2024.5",  # `prepare corpora --scheduler`: the work of one machine, on many
        ],
        "serve": [
            "ctranslate2>=4.8",  # serves what `mtmoe export-hf` writes
            "transformers>=5",  # its converter loads folders by them
        ],
        "identify": [
            "fasttext-predict>=0.9.2.4",  # reads fastText's models for language identification
        ],
        "nlu": [
            "safetensors>=0.5",  # weights of pretrained encoders, which `mtmoe import-hf` reads and `export-hf` writes
            "tokenizers>=0.21",  # these encoders' tokenizers
            "scikit-learn>=1.4",  # the benchmarks' metrics; it brings scipy, which has the others
            "seqeval>=1.2.2",  # which entities the labels of words name, as CoNLL's evaluation reads them
        ],
        "docs": [  # `make docs`
            "Sphinx>=8",  # the site: long established, its search works from the disk
            "myst-parser>=4",  # pages in Markdown
            "furo>=2024.8",  # how they look, dark and on a phone, too
            "sphinx-click>=6",  # the commands' reference
            "sphinx-copybutton>=0.5",  # copies a command
        ],
        "bench": [
            "transformers>=5",  # Switch and NLLB-MoE layers and BERT, peers in the benchmarks
            "tokenizers>=0.21",  # reads the texts of bench_glue.py
            "fairscale>=0.4.13",  # another peer
            "peft>=0.17",  # plain LoRA, with which adapters are compared
            "scipy>=1.11",  # the exact assignment that ours is compared with
            "psutil>=5.9",  # memory of a system's processes in bench_prepare.py
        ],
        "test": [
            "pytest>=8",  # runs the tests
            "pytest-cov>=5",  # measures what they reach
            "pytest-xdist>=3.5",  # runs them on all cores
            "backports.zstd>=1.0",  # packs what readers of corpora unpack
            "hypothesis>=6",  # finds inputs that nobody thought of
            "lxml>=5",  # parses the report's page
            "networkx>=3",  # finds circles and floors of imports
            "scipy>=1.11",  # the exact assignment that ours is compared with
            "fairscale>=0.4.13",  # sharded moments (`--zero-sharding os`)
            "peft>=0.17",  # its LoRA is what ours is compared with
            "transformers>=5",  # its BERT and RoBERTa are what ours are compared with, and it loads what we export
            "ruff>=0.6",  # style
            "mypy>=1.11",  # types
            "proselint>=0.16",  # the rules for English, which tools/prose.py adds to
            "markdown-it-py>=3",  # which of a page's text is prose; rich brings it anyway
        ],
    },
    entry_points={"console_scripts": ["mtmoe = fairseq_mtmoe.cli.main:main"]},
)
