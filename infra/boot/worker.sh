#!/usr/bin/env bash
# A worker: one Ray node that offers its hardware profile. What vLLM's documentation asks of a container on CPUs: SYS_NICE
# and no seccomp filter, for memory placement, and room in /dev/shm.
. "$(dirname "$0")/common.sh"

NODE_NAME=$(instance_id)
LABELS=()
[[ -z $RAY_LABELS ]] || LABELS=("--labels=$RAY_LABELS")

run_container specsweep-worker \
  --cap-add SYS_NICE --security-opt seccomp=unconfined --shm-size 8g \
  --env RAY_worker_niceness=0 \
  --volume "$STATE/results:/srv/specsweep/results" \
  -- ray start "--address=$HEAD_ADDRESS:6379" "--node-name=$NODE_NAME" "--resources=$RAY_RESOURCES" "${LABELS[@]}" \
  --object-store-memory=1000000000 --disable-usage-stats --block
