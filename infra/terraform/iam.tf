# Each role may do what its nodes do, and no more. Describe calls and a registry login know no resources: AWS takes "*" only.

data "aws_iam_policy_document" "assume_ec2" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

locals {
  # Bucket and folder of the mirror; null without one.
  mirror        = try(regex("^s3://(?P<bucket>[^/]+)/?(?P<folder>.*?)/*$", var.model_mirror), null)
  mirror_prefix = try(local.mirror.folder, "") == "" ? "" : "${local.mirror.folder}/"
  images        = { head = var.head_image, worker = var.worker_image }
  # Only ECR repositories need a permission; other registries are asked without one.
  repositories = {
    for role, image in local.images : role => [
      for match in regexall("^([0-9]{12})\\.dkr\\.ecr\\.([a-z0-9-]+)\\.amazonaws\\.com/([^:@]+)", image) :
      "arn:${local.partition}:ecr:${match[1]}:${match[0]}:repository/${match[2]}"
    ]
  }
  secrets = {
    head   = ["ray_token", "mlflow_password", "hf_token"]
    worker = ["ray_token", "hf_token"]
  }
}

# What both roles do. AWS's own policy for Session Manager would let every node read every parameter of the account.
data "aws_iam_policy_document" "node" {
  #checkov:skip=CKV_AWS_111:Session Manager's channels and a registry login know no resources
  #checkov:skip=CKV_AWS_356:Session Manager's channels and a registry login know no resources
  for_each = local.images

  statement {
    sid = "SessionManager"
    actions = [
      "ssm:UpdateInstanceInformation",
      "ssmmessages:CreateControlChannel",
      "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel",
      "ssmmessages:OpenDataChannel",
      "ec2messages:AcknowledgeMessage",
      "ec2messages:DeleteMessage",
      "ec2messages:FailMessage",
      "ec2messages:GetEndpoint",
      "ec2messages:GetMessages",
      "ec2messages:SendReply",
    ]
    resources = ["*"]
  }

  statement {
    sid       = "Secrets"
    actions   = ["ssm:GetParameter"]
    resources = [for secret in local.secrets[each.key] : local.secret_parameters[secret].arn]
  }

  # The key opens these parameters only: SSM encrypts each under its own name.
  statement {
    sid       = "SecretsKey"
    actions   = ["kms:Decrypt"]
    resources = [aws_kms_key.fleet.arn]
    condition {
      test     = "StringEquals"
      variable = "kms:EncryptionContext:PARAMETER_ARN"
      values   = [for secret in local.secrets[each.key] : local.secret_parameters[secret].arn]
    }
  }

  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.nodes.arn}:*"]
  }

  dynamic "statement" {
    for_each = length(local.repositories[each.key]) > 0 ? [1] : []
    content {
      sid       = "RegistryLogin"
      actions   = ["ecr:GetAuthorizationToken"]
      resources = ["*"]
    }
  }

  dynamic "statement" {
    for_each = length(local.repositories[each.key]) > 0 ? [1] : []
    content {
      sid       = "Image"
      actions   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
      resources = local.repositories[each.key]
    }
  }

  dynamic "statement" {
    for_each = local.mirror == null ? [] : [local.mirror]
    content {
      sid       = "ModelFiles"
      actions   = ["s3:GetObject"]
      resources = ["arn:${local.partition}:s3:::${statement.value.bucket}/${local.mirror_prefix}*"]
    }
  }

  dynamic "statement" {
    for_each = local.mirror == null ? [] : [local.mirror]
    content {
      sid       = "ModelNames"
      actions   = ["s3:ListBucket"]
      resources = ["arn:${local.partition}:s3:::${statement.value.bucket}"]
      condition {
        test     = "StringLike"
        variable = "s3:prefix"
        values   = ["${local.mirror_prefix}*"]
      }
    }
  }
}

data "aws_iam_policy_document" "head" {
  statement {
    sid     = "Results"
    actions = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    # It can't delete: what was measured stays.
    resources = ["${aws_s3_bucket.results.arn}/*"]
  }

  statement {
    sid       = "ResultNames"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.results.arn]
  }

  statement {
    sid       = "ResultsKey"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.fleet.arn]
    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["s3.${var.region}.amazonaws.com"]
    }
  }

  # Scale and renew the lease: of this fleet's groups.
  statement {
    sid = "Groups"
    actions = [
      "autoscaling:PutScheduledUpdateGroupAction",
      "autoscaling:SetDesiredCapacity",
      "autoscaling:UpdateAutoScalingGroup",
    ]
    resources = [
      for profile in keys(var.workers) :
      "arn:${local.partition}:autoscaling:${var.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/${local.asg_names[profile]}"
    ]
  }

  statement {
    sid = "States"
    actions = [
      "autoscaling:DescribeAutoScalingGroups",
      "autoscaling:DescribeScheduledActions",
      "ec2:DescribeInstances",
      "ec2:DescribeNatGateways",
      "ec2:DescribeSpotPriceHistory",
      "pricing:GetProducts",
    ]
    resources = ["*"]
  }
}

resource "aws_iam_role" "node" {
  for_each           = local.images
  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.assume_ec2.json
}

resource "aws_iam_role_policy" "node" {
  for_each = local.images
  name     = "node"
  role     = aws_iam_role.node[each.key].id
  policy   = data.aws_iam_policy_document.node[each.key].json
}

resource "aws_iam_role_policy" "head" {
  name   = "head"
  role   = aws_iam_role.node["head"].id
  policy = data.aws_iam_policy_document.head.json
}

resource "aws_iam_instance_profile" "node" {
  for_each = local.images
  name     = "${var.name}-${each.key}"
  role     = aws_iam_role.node[each.key].name
}

data "aws_iam_policy_document" "assume_flow_logs" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["vpc-flow-logs.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

data "aws_iam_policy_document" "flow_log" {
  statement {
    actions   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.flow.arn}:*"]
  }
}

resource "aws_iam_role" "flow_log" {
  name               = "${var.name}-flow-log"
  assume_role_policy = data.aws_iam_policy_document.assume_flow_logs.json
}

resource "aws_iam_role_policy" "flow_log" {
  name   = "write"
  role   = aws_iam_role.flow_log.id
  policy = data.aws_iam_policy_document.flow_log.json
}
