# What `make engine-env` makes runs in here, mounted from a volume: Debian's Python, and what vLLM's CPU build needs of the system.
# The build itself (6.4 GB) stays out of images and registries. For tests and trials; on GPUs take images/vllm.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE}
RUN apt-get update -q \
 && apt-get install -q -y --no-install-recommends libnuma1 gcc libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists
USER 65532:65532
