# User data: the files of ../boot as they are, and one of settings; then boot.sh runs once. Secrets are in none of them:
# nodes fetch those at every boot.

locals {
  boot = "${path.module}/../boot"

  boot_files = {
    head = [
      "boot.sh", "common.sh", "secrets.sh", "head.sh", "mlflow.sh", "rescue.sh", "node.docker.env",
      "units/specsweep-secrets.service", "units/specsweep-rescue.service",
      "units/specsweep-head.service", "units/specsweep-mlflow.service",
    ]
    worker = [
      "boot.sh", "common.sh", "secrets.sh", "worker.sh", "node.docker.env",
      "units/specsweep-secrets.service", "units/specsweep-worker.service", "units/specsweep-interruption.service",
    ]
  }

  write_files = {
    for role, files in local.boot_files : role => [
      for file in files : {
        path        = startswith(file, "units/") ? "/etc/systemd/system/${basename(file)}" : "/opt/specsweep/${file}"
        permissions = endswith(file, ".sh") ? "0755" : "0644"
        content     = file("${local.boot}/${file}")
      }
    ]
  }

  node_settings = {
    AWS_REGION       = var.region
    HEAD_ADDRESS     = local.head_private_ip
    LOG_GROUP        = aws_cloudwatch_log_group.nodes.name
    PARAMETER_PREFIX = "/specsweep/${var.name}"
  }

  head_settings = merge(local.node_settings, {
    ROLE           = "head"
    IMAGE          = var.head_image
    SECRETS        = join(" ", local.secrets.head)
    TTL_S          = tostring(ceil(var.ttl_hours * 3600))
    RESULTS_BUCKET = aws_s3_bucket.results.id
    # MLflow wants each host with its port as well.
    MLFLOW_ALLOWED_HOSTS = join(",", concat(
      flatten([for host in ["localhost", "127.0.0.1", local.head_private_ip] : [host, "${host}:*"]]),
      var.mlflow_allowed_hosts,
    ))
  })

  worker_settings = {
    for profile, worker in var.workers : profile => merge(local.node_settings, {
      ROLE          = "worker"
      IMAGE         = var.worker_image
      SECRETS       = join(" ", local.secrets.worker)
      RAY_RESOURCES = jsonencode(worker.ray_resources)
      RAY_LABELS    = join(",", [for label, value in worker.ray_labels : "${label}=${value}"])
    })
  }

  head_node_env = templatefile("${local.boot}/node.env.tftpl", { settings = local.head_settings })
  worker_node_envs = {
    for profile, settings in local.worker_settings : profile => templatefile("${local.boot}/node.env.tftpl", { settings = settings })
  }

  head_user_data = join("\n", ["#cloud-config", yamlencode({
    write_files = concat(local.write_files.head, [
      { path = "/etc/specsweep/node.env", permissions = "0644", content = local.head_node_env },
    ])
    runcmd = [["/opt/specsweep/boot.sh"]]
  })])

  worker_user_data = {
    for profile, node_env in local.worker_node_envs : profile => join("\n", ["#cloud-config", yamlencode({
      write_files = concat(local.write_files.worker, [
        { path = "/etc/specsweep/node.env", permissions = "0644", content = node_env },
      ])
      runcmd = [["/opt/specsweep/boot.sh"]]
    })])
  }
}
