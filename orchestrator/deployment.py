"""A chosen arm as the files that platforms take: vLLM's own config file, Compose, systemd, Kubernetes. Pure.

All four start the same engine with the flags that were measured. None holds a secret: an API key comes from the
environment (Compose), an environment file (systemd) or a Secret (Kubernetes), and without one the server has none.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from orchestrator.config import Hardware
from orchestrator.deploy import CACHE_IN_IMAGE, LIB_IN_IMAGE, PORT, image_of, serve_command, serve_line
from orchestrator.measured_server import MeasuredServer
from tasks.server_command import local_models, mounted_folders

NAME = "vllm"
ENGINE_HOME = "/opt/vllm"
"""Where the systemd unit expects the engine's environment."""
ENV_FILE = "/etc/vllm/vllm.env"
SHARED_MEMORY = "4g"


def deployment_files(server: MeasuredServer, hardware: Hardware, user: str) -> dict[str, str]:
    """File name -> its text.

    Args:
        user: who runs the systemd unit where it needs one that can read models in folders of this machine.
    """
    model, *arguments = serve_command(server.spec)
    about = "".join(f"# {line}\n" for line in _about(server, hardware))
    config = {"model": model, **as_config(arguments), "port": int(PORT)}
    pod = _yaml_documents(_kubernetes(server, hardware))
    on_cpus = f"# Keep the pod on CPUs {server.cpus}: the kubelet's static CPU manager does.\n" if server.cpus else ""
    return {
        "vllm.yaml": f"{about}# {serve_line(server, ['--config', 'vllm.yaml'])}\n{_yaml(config)}",
        "compose.yaml": f"{about}# docker compose up\n{_yaml(_compose(server))}",
        "vllm.service": about + _unit(server, user),
        "kubernetes.yaml": f"{about}{on_cpus}# kubectl apply -f kubernetes.yaml\n{pod}",
    }


def _about(server: MeasuredServer, hardware: Hardware) -> list[str]:
    lines = [f"{server.arm} on {hardware.name}, as the sweep serves it. Written by `orchestrator export`."]
    if server.cpus:
        lines.append(
            "One of the node's servers, on the first of its NUMA nodes; `orchestrator select` prints them all."
        )
    if server.spec.patches:
        lines.append(f"The engine needs the plugin of this project, with {', '.join(server.spec.patches)}.")
    return lines


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


def _compose(server: MeasuredServer) -> dict[str, Any]:
    environment = _escaped_values(server.environment(LIB_IN_IMAGE))
    return {
        "services": {
            NAME: {
                "image": image_of(server),
                "command": _escaped([*serve_command(server.spec), "--port", PORT]),
                "environment": {**environment, "VLLM_API_KEY": "${VLLM_API_KEY:-}"},
                "ports": [f"127.0.0.1:{PORT}:{PORT}"],
                "volumes": [
                    f"${{HOME}}/.cache/huggingface:{CACHE_IN_IMAGE}",
                    *(f"{path}:{path}:ro" for path in mounted_folders(server.spec)),
                ],
                **({"cpuset": server.cpus} if server.cpus else {}),
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


def _unit(server: MeasuredServer, user: str) -> str:
    path = f"{ENGINE_HOME}/bin:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": "/var/lib/vllm", **server.environment(f"{ENGINE_HOME}/lib")}
    command = ["vllm", "serve", *serve_command(server.spec), "--port", PORT]
    lines = [
        f"# The engine's environment is expected in {ENGINE_HOME}; {ENV_FILE} (mode 600) may hold VLLM_API_KEY=...",
        "[Unit]",
        "Description=vLLM server",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        *(f"Environment={_unit_quoted(f'{name}={value}')}" for name, value in environment.items()),
        f"EnvironmentFile=-{ENV_FILE}",
        f"ExecStart=/usr/bin/env {' '.join(map(_unit_quoted, command))}",
        "Restart=on-failure",
        *_run_as(server, user),
        *([f"CPUAffinity={server.cpus}"] if server.cpus else []),
        "StateDirectory=vllm",
        "LimitMEMLOCK=infinity",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _run_as(server: MeasuredServer, user: str) -> list[str]:
    """A user made for the service has a /tmp of its own and may not read what lies in homes."""
    if not local_models(server.spec):
        return ["DynamicUser=yes"]
    return [
        "# DynamicUser=yes would hide models under /tmp and is shut out of homes; whoever runs this must read:",
        *(f"#   {folder}" for folder in local_models(server.spec)),
        f"User={user}",
    ]


def _unit_quoted(text: str) -> str:
    """For systemd: quotes, backslashes, `%` specifiers and `$` variables stand for themselves."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'


def _kubernetes(server: MeasuredServer, hardware: Hardware) -> list[dict[str, Any]]:
    labels = {"app": NAME}
    pod = {
        "containers": [_container(server, hardware)],
        "volumes": [
            {"name": "cache", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *(
                {"name": f"model-{number}", "hostPath": {"path": path, "type": "Directory"}}
                for number, path in enumerate(mounted_folders(server.spec))
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


def _container(server: MeasuredServer, hardware: Hardware) -> dict[str, Any]:
    """Requests take the whole node, as it was measured; the image's entry point is `vllm serve`."""
    key = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": NAME, "key": "api-key", "optional": True}}}
    cores = hardware.physical_cores
    environment = server.environment(LIB_IN_IMAGE)
    health = {"httpGet": {"path": "/health", "port": int(PORT)}}
    return {
        "name": NAME,
        "image": image_of(server),
        "args": [*serve_command(server.spec), "--port", PORT],
        "env": [*({"name": name, "value": value} for name, value in environment.items()), key],
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
                for number, path in enumerate(mounted_folders(server.spec))
            ),
        ],
    }


class _Plain(yaml.SafeDumper):
    """Repeats what occurs twice, instead of pointing to it."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _yaml_documents(values: Sequence[object]) -> str:
    return "---\n".join(map(_yaml, values))


def _yaml(value: object) -> str:
    return yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=10_000)
