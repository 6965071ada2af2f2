# An image with fairseq, this package and all of its commands.
#   docker build -t fairseq_mtmoe .
#   docker build -t fairseq_mtmoe --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 \
#       --build-arg TORCH=https://download.pytorch.org/whl/cu128 .
#   docker run --rm -it -v "$PWD:/work" fairseq_mtmoe          # add --gpus all for GPUs
ARG BASE=ubuntu:24.04
FROM ${BASE}
ARG TORCH=https://download.pytorch.org/whl/cpu
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv "$VIRTUAL_ENV"
# torch, then fairseq without its dependencies beside our pinned list: docs/start/install.md says why.
COPY constraints.txt /src/
RUN pip install --index-url "$TORCH" -c /src/constraints.txt torch \
    && pip install -c /src/constraints.txt numpy cython setuptools wheel bitarray cffi hydra-core omegaconf packaging \
        regex sacrebleu scikit-learn tqdm \
    && pip install --no-deps --no-build-isolation fairseq-fixed==0.12.3.1
COPY setup.py pyproject.toml README.md LICENSE /src/
COPY fairseq_mtmoe /src/fairseq_mtmoe
RUN pip install -c /src/constraints.txt '/src[corpora,nlu,serve]' && mtmoe doctor
WORKDIR /work
CMD ["bash"]
