#!/usr/bin/env bash
# Ray's head, in which sweeps run as Ray jobs. It offers no CPU: visits go to workers. The dashboard and its job API stay
# on loopback. A missing file of credentials is an error of --mount, and tried again; --volume would make a folder of it.
. "$(dirname "$0")/common.sh"

run_container specsweep-head \
  --env "MLFLOW_TRACKING_URI=http://$HEAD_ADDRESS:5000" \
  --mount "type=bind,source=$RUNTIME/secrets/mlflow_credentials,target=/home/specsweep/.mlflow/credentials,readonly" \
  --volume "$STATE/results:/srv/specsweep/results" \
  --shm-size 1g \
  -- ray start --head "--node-ip-address=$HEAD_ADDRESS" --port=6379 --dashboard-host=127.0.0.1 --num-cpus=0 \
  --object-store-memory=500000000 --disable-usage-stats --block
