#!/usr/bin/env bash
# Sourced by the others: the node's settings and what several of them do.
set -euo pipefail

# shellcheck source=/dev/null
. "${SPECSWEEP_NODE_ENV:-/etc/specsweep/node.env}"

# The user of both images. It owns what containers write.
CONTAINER_UID=10001
STATE=/var/lib/specsweep
RUNTIME=/run/specsweep
export AWS_REGION AWS_DEFAULT_REGION="$AWS_REGION"

# retry COMMAND...: eight tries over about two minutes; networks and registries come up late.
retry() {
  local attempt
  for attempt in 1 2 3 4 5 6 7; do
    "$@" && return
    sleep $((attempt * 5))
  done
  "$@"
}

# own_folder MODE PATH...: folders of the containers' user.
own_folder() {
  install -d -m "$1" -o "$CONTAINER_UID" -g "$CONTAINER_UID" "${@:2}"
}

instance_id() {
  local token
  token=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)
  curl -sSf -H "X-aws-ec2-metadata-token: $token" http://169.254.169.254/latest/meta-data/instance-id
}

# run_container NAME OPTION... -- COMMAND...: becomes a container of the node's image on the host's network. Secrets are
# files below $RUNTIME, never arguments or variables.
run_container() {
  local name=$1 options=() id
  shift
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  id=$(instance_id)
  # Left by a crash of the machine.
  docker rm --force "$name" >/dev/null 2>&1 || true
  exec docker run --rm --init --name "$name" --network host --user "$CONTAINER_UID:$CONTAINER_UID" \
    --security-opt no-new-privileges --ulimit nofile=65536:65536 \
    --log-driver awslogs --log-opt mode=non-blocking --log-opt "awslogs-region=$AWS_REGION" \
    --log-opt "awslogs-group=$LOG_GROUP" --log-opt "awslogs-stream=$id/$name" \
    --env-file /opt/specsweep/node.docker.env --env "AWS_REGION=$AWS_REGION" --env "AWS_DEFAULT_REGION=$AWS_REGION" \
    --volume "$RUNTIME:$RUNTIME" --volume "$STATE/huggingface:$STATE/huggingface" \
    "${options[@]}" "$IMAGE" "$@"
}
