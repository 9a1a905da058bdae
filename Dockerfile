# SPDX-License-Identifier: Apache-2.0
# The image of the live scheduler and of the agent: the packages of requirements-image.lock, checked against its hashes, and
# nothing to build with. `make image` builds it and writes build/koordpy.oci.tar; `docker build .` works as well.
#
# Name the base by its digest for builds that can be repeated: --build-arg PYTHON=python:3.13-slim@sha256:...
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements-image.lock requirements-build.lock image/trim.sh ./
# Without their dependencies: the lock leaves out those that nothing of koordpy imports.
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && python -m venv /tools && python -m venv --without-pip /opt/koordpy \
    && /tools/bin/pip --python /opt/koordpy install --require-hashes --no-deps --requirement requirements-image.lock \
    && /tools/bin/pip install --require-hashes --requirement requirements-build.lock \
    && ./trim.sh /opt/koordpy
COPY pyproject.toml README.md LICENSE ./
COPY koordpy koordpy
COPY crds crds
COPY examples examples
# koordpy itself lies apart, for a layer of its own.
RUN /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /tools/bin/pip --python /opt/koordpy install --no-deps --no-index --root /own wheels/koordpy-*.whl

FROM ${PYTHON}
COPY --from=build /opt/koordpy /opt/koordpy
COPY --from=build /own/opt/koordpy /opt/koordpy
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="koordpy" \
      org.opencontainers.image.description="A Kubernetes scheduler for gangs and network topology on clusters of accelerators" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# What objects that are gone have left goes back to the machine in pages of 4 kB; Python's own allocator gives arenas of
# 1 MB, and keeps each in which anything lies (docs/benchmarks-live.md).
ENV PYTHONMALLOC=malloc GLIBC_TUNABLES=glibc.malloc.tcache_count=2:glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=65536
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["/opt/koordpy/bin/koordpy"]
CMD ["run"]
