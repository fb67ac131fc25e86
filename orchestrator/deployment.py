"""A chosen arm as the files that platforms take: vLLM's own config file, Compose, systemd, Kubernetes. Pure.

All four start the same engine with the flags that were measured. None holds a secret: an API key comes from the
environment (Compose), an environment file (systemd) or a Secret (Kubernetes), and without one the server has none.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from orchestrator.config import Hardware
from orchestrator.deploy import CACHE_IN_IMAGE, PORT, environment_of, image_of, local_models, serve_command
from orchestrator.records import Arm, ServerSpec

NAME = "vllm"
ENGINE_HOME = "/opt/vllm"
"""Where the systemd unit expects the engine's environment."""
ENV_FILE = "/etc/vllm/vllm.env"
SHARED_MEMORY = "4g"
PRELOADED = "lib/libiomp5.so"


def deployment_files(arm: Arm, hardware: Hardware, engine_version: str | None) -> dict[str, str]:
    """File name -> its text."""
    model, *arguments = serve_command(arm.server)
    about = f"# {arm.name} on {hardware.name}, as it was measured. Written by `orchestrator export`.\n"
    config = {"model": model, **as_config(arguments), "port": int(PORT)}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment_of(arm.server).items())
    return {
        "vllm.yaml": f"{about}# {settings} vllm serve --config vllm.yaml\n{_yaml(config)}",
        "compose.yaml": f"{about}# docker compose up\n{_yaml(_compose(arm.server, engine_version))}",
        "vllm.service": _unit(arm),
        "kubernetes.yaml": f"{about}# kubectl apply -f kubernetes.yaml\n"
        + "---\n".join(_yaml(part) for part in _kubernetes(arm.server, hardware, engine_version)),
    }


def as_config(arguments: Sequence[str]) -> dict[str, Any]:
    """Flags of `vllm serve` as the keys of its config file: a flag alone is true, `--no-x` is x: false."""
    config: dict[str, Any] = {}
    key = ""
    for argument in arguments:
        if argument.startswith("--"):
            key, _, value = argument.removeprefix("--").partition("=")
            is_negated = key.startswith("no-") and not value
            key = key.removeprefix("no-") if is_negated else key
            config[key] = value or not is_negated
        elif isinstance(config[key], bool):
            config[key] = _number(argument)
        else:
            config[key] = [*(config[key] if isinstance(config[key], list) else [config[key]]), argument]
    if isinstance(speculation := config.get("speculative-config"), str):
        config["speculative-config"] = json.loads(speculation)  # vLLM takes nested keys
    return config


def _number(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _compose(spec: ServerSpec, engine_version: str | None) -> dict[str, Any]:
    return {
        "services": {
            NAME: {
                "image": image_of(spec, engine_version),
                "command": _escaped([*serve_command(spec), "--port", PORT]),
                "environment": {**_escaped_values(environment_of(spec)), "VLLM_API_KEY": "${VLLM_API_KEY:-}"},
                "ports": [f"127.0.0.1:{PORT}:{PORT}"],
                "volumes": [
                    f"${{HOME}}/.cache/huggingface:{CACHE_IN_IMAGE}",
                    *(f"{path}:{path}:ro" for path in local_models(spec)),
                ],
                "cap_add": ["SYS_NICE"],
                "security_opt": ["seccomp=unconfined"],
                "ipc": "host",
                "restart": "unless-stopped",
            }
        }
    }


def _escaped(values: Sequence[str]) -> list[str]:
    """Compose fills in what follows a dollar sign."""
    return [value.replace("$", "$$") for value in values]


def _escaped_values(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value.replace("$", "$$") for name, value in values.items()}


def _unit(arm: Arm) -> str:
    spec = arm.server
    environment = {"PATH": f"{ENGINE_HOME}/bin:/usr/local/bin:/usr/bin:/bin", **environment_of(spec)}
    if spec.preload_openmp:
        environment["LD_PRELOAD"] = f"{ENGINE_HOME}/{PRELOADED}"
    lines = [
        f"# {arm.name}, as it was measured. Written by `orchestrator export`.",
        f"# The engine's environment is expected in {ENGINE_HOME}; {ENV_FILE} (mode 600) may hold VLLM_API_KEY=...",
        "[Unit]",
        "Description=vLLM server",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        *(f"Environment={_unit_quoted(f'{name}={value}')}" for name, value in environment.items()),
        f"EnvironmentFile=-{ENV_FILE}",
        "ExecStart=/usr/bin/env "
        + " ".join(map(_unit_quoted, ["vllm", "serve", *serve_command(spec), "--port", PORT])),
        "Restart=on-failure",
        "DynamicUser=yes",
        "StateDirectory=vllm",
        "Environment=HOME=/var/lib/vllm",
        "LimitMEMLOCK=infinity",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _unit_quoted(text: str) -> str:
    """For systemd: quotes, backslashes, `%` specifiers and `$` variables stand for themselves."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'


def _kubernetes(spec: ServerSpec, hardware: Hardware, engine_version: str | None) -> list[dict[str, Any]]:
    labels = {"app": NAME}
    pod = {
        "containers": [_container(spec, hardware, engine_version)],
        "volumes": [
            {"name": "cache", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *(
                {"name": f"model-{number}", "hostPath": {"path": path, "type": "Directory"}}
                for number, path in enumerate(local_models(spec))
            ),
        ],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": int(PORT), "targetPort": int(PORT)}]},
    }
    return [deployment, service]


def _container(spec: ServerSpec, hardware: Hardware, engine_version: str | None) -> dict[str, Any]:
    """Requests take the whole node, as it was measured; the image's entry point is `vllm serve`."""
    key = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": NAME, "key": "api-key", "optional": True}}}
    cores = hardware.physical_cores
    health = {"httpGet": {"path": "/health", "port": int(PORT)}}
    return {
        "name": NAME,
        "image": image_of(spec, engine_version),
        "args": [*serve_command(spec), "--port", PORT],
        "env": [*({"name": name, "value": value} for name, value in environment_of(spec).items()), key],
        "ports": [{"name": "http", "containerPort": int(PORT)}],
        **({"resources": {"requests": {"cpu": str(cores)}}} if cores else {}),
        "securityContext": {"capabilities": {"add": ["SYS_NICE"]}, "seccompProfile": {"type": "Unconfined"}},
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": {**health, "periodSeconds": 10},
        "volumeMounts": [
            {"name": "cache", "mountPath": CACHE_IN_IMAGE},
            {"name": "shm", "mountPath": "/dev/shm"},
            *(
                {"name": f"model-{number}", "mountPath": path, "readOnly": True}
                for number, path in enumerate(local_models(spec))
            ),
        ],
    }


class _Plain(yaml.SafeDumper):
    """Repeats what occurs twice, instead of pointing to it."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _yaml(value: object) -> str:
    return yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=10_000)
