# The image of the live scheduler and of the agent: the packages of requirements.lock, checked against its hashes, and nothing to build
# with. `docker build --tag koordpy:0.1.0 .`
FROM python:3.13-slim AS build
WORKDIR /build
COPY requirements.lock ./
# Everything that is locked is fetched and checked here; what koordpy needs at run time is taken from it below.
RUN python -m pip wheel --require-hashes --wheel-dir wheels --requirement requirements.lock
RUN python -m pip install --no-index --find-links wheels hatchling editables
COPY pyproject.toml README.md LICENSE ./
COPY koordpy koordpy
COPY crds crds
COPY examples examples
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && python -m venv /opt/koordpy \
    && /opt/koordpy/bin/python -m pip install --no-index --find-links wheels "koordpy[agent]" \
    && /opt/koordpy/bin/python -m pip uninstall --yes pip

FROM python:3.13-slim
COPY --from=build /opt/koordpy /opt/koordpy
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 10259
ENTRYPOINT ["/opt/koordpy/bin/koordpy"]
CMD ["run"]
