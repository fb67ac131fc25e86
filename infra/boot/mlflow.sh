#!/usr/bin/env bash
# MLflow with basic authentication; its databases are on the encrypted volume, its artifacts in S3.
. "$(dirname "$0")/common.sh"

run_container specsweep-mlflow \
  --env-file "$RUNTIME/secrets/mlflow.env" \
  --env "MLFLOW_AUTH_CONFIG_PATH=$RUNTIME/secrets/mlflow_auth.ini" \
  --volume "$STATE/mlflow:$STATE/mlflow" \
  -- mlflow server --app-name basic-auth --host 0.0.0.0 --port 5000 --workers 1 \
  --allowed-hosts "$MLFLOW_ALLOWED_HOSTS" \
  --backend-store-uri "sqlite:///$STATE/mlflow/mlflow.db" --artifacts-destination "s3://$RESULTS_BUCKET/mlflow"
