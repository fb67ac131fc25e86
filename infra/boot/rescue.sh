#!/usr/bin/env bash
# Runs when the head goes down, for whatever reason, after its containers have stopped: copies what it holds to S3, where
# the driver may not have brought it yet.
. "$(dirname "$0")/common.sh"

ID=$(instance_id)
for folder in results mlflow; do
  aws s3 sync --only-show-errors --no-follow-symlinks "$STATE/$folder" "s3://$RESULTS_BUCKET/rescued/$ID/$folder"
done
