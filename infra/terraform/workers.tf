locals {
  asg_names = { for profile in keys(var.workers) : profile => "${var.name}-${profile}" }
}

resource "aws_launch_template" "workers" {
  for_each               = var.workers
  name                   = local.asg_names[each.key]
  image_id               = nonsensitive(data.aws_ssm_parameter.ami.value)
  instance_type          = each.value.instance_type
  vpc_security_group_ids = [aws_security_group.nodes.id]
  ebs_optimized          = true
  user_data              = base64encode(local.worker_user_data[each.key])

  # A worker that cannot boot powers off: ended, its group replaces it and its volume is not paid for.
  instance_initiated_shutdown_behavior = "terminate"

  iam_instance_profile {
    name = aws_iam_instance_profile.node["worker"].name
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type           = "gp3"
      volume_size           = each.value.volume_gb
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume"])
    content {
      resource_type = tag_specifications.value
      tags = merge(local.tags, {
        Name                = local.asg_names[each.key]
        "specsweep:role"    = "worker"
        "specsweep:profile" = each.key
      })
    }
  }
}

# No lifecycle hook: a node that is scaled in shuts down, systemd stops its unit and Ray drains; a hook would only add a wait.
resource "aws_autoscaling_group" "workers" {
  for_each = var.workers
  name     = local.asg_names[each.key]
  min_size = each.value.min_size
  max_size = each.value.max_size
  # Nothing runs before something can end it: the fleet's commands give a lease first, then workers.
  desired_capacity    = 0
  vpc_zone_identifier = aws_subnet.private[*].id
  # Balancing zones would end nodes that measure.
  suspended_processes = ["AZRebalance"]
  # Ready is InService and alive in Ray, which the fleet's commands wait for.
  wait_for_capacity_timeout = "0"

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = each.value.on_demand_base
      on_demand_percentage_above_base_capacity = 100 - each.value.spot_percentage
      spot_allocation_strategy                 = "price-capacity-optimized"
    }
    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.workers[each.key].id
        version            = aws_launch_template.workers[each.key].latest_version
      }
      # One type: figures of different machines don't mix.
      override {
        instance_type = each.value.instance_type
      }
    }
  }

  dynamic "tag" {
    for_each = local.tags
    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  lifecycle {
    # The fleet's commands, the lease and the idle alarm change it. So they do min_size when they scale to zero.
    ignore_changes = [desired_capacity, min_size]
  }

  depends_on = [
    aws_iam_role_policy.node,
    aws_route.private_out,
    aws_route_table_association.private,
    aws_vpc_security_group_egress_rule.https,
  ]
}
