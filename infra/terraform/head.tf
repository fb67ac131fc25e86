locals {
  # Known before the head exists, so workers can be told; the first four and the last address of a subnet are AWS's.
  head_private_ip = cidrhost(cidrsubnet(var.vpc_cidr, 4, 0), 10)
}

data "aws_ssm_parameter" "ami" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
}

resource "aws_instance" "head" {
  #checkov:skip=CKV_AWS_126:Five-minute figures are enough for a machine that lives for hours, and they are free
  ami                    = nonsensitive(data.aws_ssm_parameter.ami.value)
  instance_type          = var.head_instance_type
  subnet_id              = aws_subnet.private[0].id
  private_ip             = local.head_private_ip
  vpc_security_group_ids = [aws_security_group.nodes.id]
  iam_instance_profile   = aws_iam_instance_profile.node["head"].name
  ebs_optimized          = true
  # Its timer's poweroff at ttl_hours ends it for good.
  instance_initiated_shutdown_behavior = "terminate"
  user_data                            = local.head_user_data

  # One hop: containers run in the host's network, and none of another network gets the role's credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.head_volume_gb
    encrypted   = true
    tags        = merge(local.tags, { Name = "${var.name}-head" })
  }

  tags = { Name = "${var.name}-head", "specsweep:role" = "head" }

  lifecycle {
    # A newer image is no reason to replace a head that holds results, and new user data none to stop it: it would not
    # even run again. A head is changed by fleet down and up.
    ignore_changes = [ami, user_data]
  }

  # What its first boot needs.
  depends_on = [
    aws_iam_role_policy.node,
    aws_iam_role_policy.head,
    aws_route.private_out,
    aws_route_table_association.private,
    aws_vpc_security_group_egress_rule.https,
  ]
}
