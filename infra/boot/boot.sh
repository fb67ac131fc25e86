#!/usr/bin/env bash
# First boot: arms the end of the head, installs Docker, fetches the image, starts the units. They start again by
# themselves after a reboot.
. "$(dirname "$0")/common.sh"

# A date rather than a delay: a reboot does not put it off.
arm_end() {
  local date
  date=$(date -u -d "+$1 seconds" '+%Y-%m-%d %H:%M:%S UTC')
  printf '[Unit]\nDescription=End of the fleet\n[Service]\nType=oneshot\nExecStart=/usr/bin/systemctl poweroff\n' \
    >/etc/systemd/system/specsweep-end.service
  printf '[Unit]\nDescription=End of the fleet\n[Timer]\nOnCalendar=%s\nPersistent=true\n[Install]\nWantedBy=timers.target\n' \
    "$date" >/etc/systemd/system/specsweep-end.timer
  systemctl daemon-reload
  systemctl enable --now specsweep-end.timer
}

# Only private ECR needs a login; the password goes through a pipe.
registry_login() {
  [[ $IMAGE =~ ^([0-9]{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com)/ ]] || return 0
  aws ecr get-login-password --region "${BASH_REMATCH[2]}" |
    docker login --username AWS --password-stdin "${BASH_REMATCH[1]}"
}

if [[ $ROLE == head ]]; then
  # First of all, so that a boot that fails still ends.
  arm_end "$TTL_S"
  UNITS=(specsweep-secrets specsweep-rescue specsweep-mlflow specsweep-head)
else
  # A worker that cannot boot only costs: powered off it is unhealthy, and its group makes another.
  trap '[[ $? == 0 ]] || systemctl poweroff' EXIT
  UNITS=(specsweep-secrets specsweep-worker specsweep-interruption)
fi
retry dnf install --assumeyes --quiet docker
systemctl enable --now docker
own_folder 0755 "$STATE" "$STATE/results" "$STATE/mlflow" "$STATE/huggingface"
retry registry_login
retry docker pull --quiet "$IMAGE"
systemctl daemon-reload
systemctl enable --now "${UNITS[@]/%/.service}"
