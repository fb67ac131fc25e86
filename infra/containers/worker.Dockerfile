# A worker: vLLM's CPU image with this project in its environment. Build from the repository's root:
#   docker build --platform linux/amd64 --file infra/containers/worker.Dockerfile --tag REGISTRY/specsweep-worker:TAG .
# The tag is the engine's version that is measured, and that reports recommend.
ARG VLLM_TAG=v0.32.0
#checkov:skip=CKV_DOCKER_2:systemd restarts the container when Ray ends, and nothing reads a health state
FROM vllm/vllm-openai-cpu:${VLLM_TAG}

# Python 3.12 in /opt/venv, with uv. Ray's version is the lock file's, as on the head. The engine stays as it came: the
# build fails if the installation touched vLLM or torch.
WORKDIR /opt/specsweep
COPY pyproject.toml README.md ./
COPY infra/engine/requirements.lock infra/engine/
COPY conf conf
COPY orchestrator orchestrator
COPY tasks tasks
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN python -c 'import sys; assert sys.version_info[:2] == (3, 12), sys.version' \
    && uv pip freeze | grep -E '^(vllm|torch)[ =]' > /tmp/engine.txt \
    && grep -E '^ray==' infra/engine/requirements.lock > /tmp/constraints.txt \
    && uv pip install --no-cache --constraint /tmp/constraints.txt '.[aws]' \
    && uv pip freeze | grep -E '^(vllm|torch)[ =]' | diff - /tmp/engine.txt \
    && python -c 'import boto3, orchestrator.schedule, tasks.model_files, tasks.interruption, tasks.visit' \
    && rm /tmp/engine.txt /tmp/constraints.txt

# The user that boot scripts run containers as, and that owns the folders they mount.
RUN groupadd --gid 10001 specsweep && useradd --uid 10001 --gid 10001 --create-home specsweep \
    && install --directory --owner 10001 --group 10001 /srv/specsweep /srv/specsweep/results
# The commit that it is built from, + behind it where files differ.
ARG GIT_COMMIT=""
LABEL org.opencontainers.image.revision=$GIT_COMMIT
ENV HOME=/home/specsweep \
    RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor \
    VLLM_NO_USAGE_STATS=1
USER 10001:10001
WORKDIR /srv/specsweep
# The base image would start a server; here the boot script says what runs.
ENTRYPOINT []
CMD ["orchestrator", "--help"]
