#!/usr/bin/env bash
# Fetches this node's secrets from SSM into files that only the containers' user may read. /run is memory: they are gone
# when the node is, and fetched again at every boot.
. "$(dirname "$0")/common.sh"
umask 077

FOLDER=$RUNTIME/secrets
own_folder 0755 "$RUNTIME"
own_folder 0700 "$FOLDER"

# write FILE: what is on stdin.
write() {
  cat >"$FOLDER/$1.new"
  chown "$CONTAINER_UID:$CONTAINER_UID" "$FOLDER/$1.new"
  mv "$FOLDER/$1.new" "$FOLDER/$1"
}

parameter() {
  retry aws ssm get-parameter --with-decryption --output text --query Parameter.Value --name "$PARAMETER_PREFIX/$1"
}

# MLflow reads its first password from an ini file, where % begins a reference, and its client from another one.
write_mlflow() {
  local escaped=${1//%/%%}
  write mlflow_auth.ini <<INI
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///$STATE/mlflow/auth.db
admin_username = admin
admin_password = $escaped
INI
  write mlflow_credentials <<INI
[mlflow]
mlflow_tracking_username = admin
mlflow_tracking_password = $escaped
INI
  # Signs forms of its pages; no one needs to know it.
  printf 'MLFLOW_FLASK_SERVER_SECRET_KEY=%s\n' "$(head -c 32 /dev/urandom | base64 --wrap=0)" | write mlflow.env
}

for secret in $SECRETS; do
  value=$(parameter "$secret")
  case $secret in
    hf_token) [[ $value == none ]] || printf '%s' "$value" | write hf_token ;;
    mlflow_password) write_mlflow "$value" ;;
    *) printf '%s' "$value" | write "$secret" ;;
  esac
done
