# The head: driver, MLflow and Ray's control plane, without an engine. Build from the repository's root:
#   docker build --platform linux/amd64 --file infra/containers/head.Dockerfile --tag REGISTRY/specsweep-head:TAG .
# Python's minor version is that of vLLM's image: Ray joins no nodes of different ones.
#checkov:skip=CKV_DOCKER_2:systemd restarts the container when Ray ends, and nothing reads a health state
FROM python:3.12-slim

WORKDIR /opt/specsweep
COPY pyproject.toml README.md ./
COPY infra/engine/requirements.lock infra/engine/
COPY conf conf
COPY orchestrator orchestrator
COPY tasks tasks
# The lock file's versions of what the project needs, S3 and the lease by the extra `aws`. MLflow's extra is its basic
# authentication; Ray without its own has no job API, and sweeps are Ray jobs. The build fails where a part is missing.
RUN pip install --no-cache-dir --constraint infra/engine/requirements.lock '.[aws]' 'mlflow[auth]' 'ray[default]' \
    && python -c 'import flask_wtf, orchestrator.cli, orchestrator.fleet_keeper, orchestrator.fleet_sweep'

RUN groupadd --gid 10001 specsweep && useradd --uid 10001 --gid 10001 --create-home specsweep \
    && install --directory --owner 10001 --group 10001 /srv/specsweep /srv/specsweep/results
# The commit that it is built from, + behind it where files differ: a sweep's provenance names it.
ARG GIT_COMMIT=""
LABEL org.opencontainers.image.revision=$GIT_COMMIT
ENV RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor \
    SPECSWEEP_GIT_COMMIT=$GIT_COMMIT
USER 10001:10001
WORKDIR /srv/specsweep
CMD ["orchestrator", "--help"]
