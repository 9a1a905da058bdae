# The image of the live scheduler and of the agent: the packages of requirements-image.lock, checked against its hashes, and
# nothing to build with.
#
#     docker build --tag koordpy:0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# Name the base by its digest for builds that can be repeated: --build-arg PYTHON=python:3.13-slim@sha256:...
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements-image.lock requirements-build.lock ./
# Without their dependencies: the lock leaves out those that nothing of koordpy imports.
RUN python -m venv --without-pip /opt/koordpy \
    && python -m pip --python /opt/koordpy install --require-hashes --no-deps --requirement requirements-image.lock \
    && python -m pip install --require-hashes --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY koordpy koordpy
COPY crds crds
COPY examples examples
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && python -m pip --python /opt/koordpy install --no-deps --no-index wheels/koordpy-*.whl

FROM ${PYTHON}
ARG REVISION=""
LABEL org.opencontainers.image.title="koordpy" \
      org.opencontainers.image.description="A Kubernetes scheduler for gangs and network topology on clusters of accelerators" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/koordpy /opt/koordpy
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["/opt/koordpy/bin/koordpy"]
CMD ["run"]
