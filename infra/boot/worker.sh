#!/usr/bin/env bash
# A worker: one Ray node that offers its hardware profile. What vLLM's documentation asks of a container on CPUs: no
# seccomp filter, for memory placement, and room in /dev/shm. Its SYS_NICE is left out, which only root would have; the
# limit on rtprio lets the load generator come before the engine.
. "$(dirname "$0")/common.sh"

NODE_NAME=$(instance_id)
LABELS=()
[[ -z $RAY_LABELS ]] || LABELS=("--labels=$RAY_LABELS")

run_container specsweep-worker \
  --security-opt seccomp=unconfined --shm-size 8g --ulimit rtprio=1 \
  --env RAY_worker_niceness=0 \
  --volume "$STATE/results:/srv/specsweep/results" \
  -- ray start "--address=$HEAD_ADDRESS:6379" "--node-name=$NODE_NAME" "--resources=$RAY_RESOURCES" "${LABELS[@]}" \
  --object-store-memory=1000000000 --disable-usage-stats --block
