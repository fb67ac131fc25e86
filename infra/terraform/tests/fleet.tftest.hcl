# Rules that every fleet keeps, on a provider that makes nothing. Run: terraform test

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { value = "ami-0123456789abcdef0" }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:us-east-1:123456789012:log-group:mock" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/mock" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-east-1:123456789012:key/mock" }
  }
  mock_resource "aws_ssm_parameter" {
    defaults = { arn = "arn:aws:ssm:us-east-1:123456789012:parameter/mock" }
  }
  mock_resource "aws_s3_bucket" {
    defaults = { id = "specsweep-mock", arn = "arn:aws:s3:::specsweep-mock" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }
  mock_resource "aws_autoscaling_policy" {
    defaults = { arn = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:mock:autoScalingGroupName/mock:policyName/mock" }
  }
}

variables {
  name   = "mocked"
  region = "us-east-1"

  availability_zones = ["us-east-1a", "us-east-1b"]

  ttl_hours       = 24
  head_image      = "123456789012.dkr.ecr.us-east-1.amazonaws.com/own/head:1"
  worker_image    = "own/worker:1"
  model_mirror    = "s3://models/mirror/"
  ray_token       = "planted-ray-0f4b9c2d7e"
  mlflow_password = "planted-mlflow-83d1"
  hf_token        = "hf_planted_5a6c"
  workers = {
    r8i_16xlarge = {
      instance_type   = "r8i.16xlarge"
      max_size        = 4
      on_demand_base  = 1
      spot_percentage = 75
      volume_gb       = 200
      ray_resources   = { r8i_16xlarge = 1 }
      ray_labels      = { profile = "r8i_16xlarge", note = "own" }
    }
    small = {
      instance_type   = "m7i.4xlarge"
      max_size        = 1
      on_demand_base  = 0
      spot_percentage = 0
      volume_gb       = 100
      ray_resources   = { small = 1 }
      ray_labels      = {}
    }
  }
}

run "nothing_outside_reaches_a_node" {
  assert {
    condition     = aws_vpc_security_group_ingress_rule.nodes.referenced_security_group_id == aws_security_group.nodes.id && aws_vpc_security_group_ingress_rule.nodes.cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.nodes.cidr_ipv6 == null
    error_message = "the only ingress is from the group itself"
  }
  assert {
    condition     = length(coalesce(aws_default_security_group.closed.ingress, [])) == 0 && length(coalesce(aws_default_security_group.closed.egress, [])) == 0
    error_message = "the default group lets nothing through"
  }
  assert {
    condition     = alltrue([for subnet in aws_subnet.private : subnet.map_public_ip_on_launch != true]) && aws_subnet.public.map_public_ip_on_launch != true
    error_message = "no subnet gives public addresses"
  }
  assert {
    condition     = contains(aws_subnet.private[*].id, aws_instance.head.subnet_id) && alltrue([for group in aws_autoscaling_group.workers : group.vpc_zone_identifier == toset(aws_subnet.private[*].id)])
    error_message = "head and workers are in private subnets"
  }
  assert {
    condition     = aws_subnet.private[*].cidr_block == ["10.42.0.0/20", "10.42.16.0/20"] && aws_subnet.public.cidr_block == "10.42.255.0/24"
    error_message = "two private subnets and one for the gateway, which don't overlap"
  }
}

run "nodes_need_sessions_for_metadata_encrypt_volumes_and_the_head_ends_itself" {
  assert {
    condition = alltrue([
      for options in concat(aws_instance.head.metadata_options, flatten([for t in aws_launch_template.workers : t.metadata_options])) :
      options.http_tokens == "required" && options.http_put_response_hop_limit == 1
    ])
    error_message = "IMDSv2 is required on every node"
  }
  assert {
    condition     = aws_instance.head.root_block_device[0].encrypted && aws_instance.head.root_block_device[0].volume_type == "gp3"
    error_message = "the head's volume is encrypted gp3"
  }
  assert {
    condition = alltrue([
      for t in aws_launch_template.workers :
      t.block_device_mappings[0].ebs[0].encrypted == "true" && t.block_device_mappings[0].ebs[0].volume_type == "gp3"
    ])
    error_message = "the workers' volumes are encrypted gp3"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.results.rule).apply_server_side_encryption_by_default).kms_master_key_id == aws_kms_key.fleet.arn
    error_message = "results are encrypted with the fleet's key"
  }
  assert {
    condition     = alltrue([for parameter in local.secret_parameters : parameter.type == "SecureString" && parameter.key_id == aws_kms_key.fleet.arn])
    error_message = "secrets are SecureStrings under the fleet's key"
  }
  assert {
    condition     = aws_instance.head.instance_initiated_shutdown_behavior == "terminate" && local.head_settings.TTL_S == "86400"
    error_message = "the head's poweroff after its time terminates it"
  }
  assert {
    condition     = alltrue([for t in aws_launch_template.workers : t.instance_initiated_shutdown_behavior == "terminate"])
    error_message = "a worker that powers off because it cannot boot is ended"
  }
  assert {
    condition     = output.head_private_ip == "10.42.0.10" && aws_instance.head.private_ip == "10.42.0.10" && output.ray_address == "10.42.0.10:6379"
    error_message = "the head's address is known before it exists"
  }
}

run "results_are_kept_and_private" {
  assert {
    condition     = aws_s3_bucket.results.force_destroy != true && aws_s3_bucket_versioning.results.versioning_configuration[0].status == "Enabled"
    error_message = "a bucket with results is not destroyed, and nothing in it is overwritten for good"
  }
  assert {
    condition     = aws_s3_bucket_public_access_block.results.block_public_acls && aws_s3_bucket_public_access_block.results.block_public_policy && aws_s3_bucket_public_access_block.results.ignore_public_acls && aws_s3_bucket_public_access_block.results.restrict_public_buckets
    error_message = "nothing about the bucket is public"
  }
  assert {
    condition     = length(aws_s3_bucket_policy.results) == 1 && one(data.aws_iam_policy_document.tls_only.statement[0].condition[*].variable) == "aws:SecureTransport"
    error_message = "on AWS the bucket answers only TLS"
  }
  assert {
    condition     = aws_s3_bucket.results.bucket == "specsweep-mocked-123456789012"
    error_message = "a bucket without a name of its own is named after fleet and account"
  }
}

run "user_data_holds_settings_but_no_secret" {
  assert {
    condition = alltrue(flatten([
      for data in concat([local.head_user_data], values(local.worker_user_data)) :
      [for secret in ["planted-ray-0f4b9c2d7e", "planted-mlflow-83d1", "hf_planted_5a6c"] : !strcontains(data, secret)]
    ]))
    error_message = "a secret is in user data"
  }
  assert {
    condition     = alltrue([for data in concat([local.head_user_data], values(local.worker_user_data)) : length(data) < 16384])
    error_message = "AWS takes at most 16 KiB of user data"
  }
  assert {
    condition     = aws_instance.head.user_data == sha1(local.head_user_data) || aws_instance.head.user_data == local.head_user_data
    error_message = "the head boots from its own user data"
  }
  assert {
    condition     = strcontains(templatefile("../boot/node.env.tftpl", { settings = { NAME = "${var.name}'s $(id) \"`id`\"" } }), "\nNAME='mocked'\\''s $(id) \"`id`\"'\n")
    error_message = "settings are quoted for the shell"
  }
  assert {
    condition     = local.worker_settings["r8i_16xlarge"].RAY_LABELS == "note=own,profile=r8i_16xlarge" && local.worker_settings["r8i_16xlarge"].RAY_RESOURCES == "{\"r8i_16xlarge\":1}"
    error_message = "a worker offers its profile to Ray"
  }
}

run "every_profile_has_its_group_with_its_share_of_spot" {
  assert {
    condition     = output.asg_names == { r8i_16xlarge = "mocked-r8i_16xlarge", small = "mocked-small" }
    error_message = "one group a profile"
  }
  assert {
    condition     = aws_autoscaling_group.workers["r8i_16xlarge"].mixed_instances_policy[0].instances_distribution[0].on_demand_base_capacity == 1 && aws_autoscaling_group.workers["r8i_16xlarge"].mixed_instances_policy[0].instances_distribution[0].on_demand_percentage_above_base_capacity == 25
    error_message = "75 percent of the nodes above the base are spot"
  }
  assert {
    condition     = aws_autoscaling_group.workers["small"].mixed_instances_policy[0].instances_distribution[0].on_demand_percentage_above_base_capacity == 100
    error_message = "without spot all are on demand"
  }
  assert {
    condition     = alltrue([for group in aws_autoscaling_group.workers : length(group.mixed_instances_policy[0].launch_template[0].override) == 1 && contains(group.suspended_processes, "AZRebalance")])
    error_message = "a group has one instance type, and no node is ended to balance zones"
  }
  assert {
    condition     = alltrue([for profile, alarm in aws_cloudwatch_metric_alarm.idle : contains(alarm.alarm_actions, aws_autoscaling_policy.to_zero[profile].arn) && alarm.treat_missing_data == "notBreaching"])
    error_message = "an idle group goes to zero"
  }
  assert {
    condition     = alltrue([for policy in aws_autoscaling_policy.to_zero : policy.adjustment_type == "ExactCapacity" && policy.scaling_adjustment == 0])
    error_message = "to zero means zero"
  }
}

run "roles_may_do_no_more_than_their_nodes_do" {
  assert {
    condition     = local.secrets.worker == ["ray_token", "hf_token"]
    error_message = "workers don't read MLflow's password"
  }
  assert {
    condition = alltrue(flatten([
      for document in [data.aws_iam_policy_document.head, data.aws_iam_policy_document.node["head"], data.aws_iam_policy_document.node["worker"]] :
      [for statement in document.statement : [for action in statement.actions : !endswith(action, "*") && !strcontains(action, "s3:Delete")]]
    ]))
    error_message = "no role has whole services, or deletes results"
  }
  assert {
    condition = [for s in data.aws_iam_policy_document.head.statement : s.resources if s.sid == "Groups"] == [toset([
      "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/mocked-r8i_16xlarge",
      "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/mocked-small",
    ])]
    error_message = "the head changes its own groups only"
  }
  assert {
    condition     = [for s in data.aws_iam_policy_document.node["worker"].statement : one(s.resources) if s.sid == "ModelFiles"] == ["arn:aws:s3:::models/mirror/*"]
    error_message = "nodes read the mirror's folder only"
  }
  assert {
    condition = (
      length([for s in data.aws_iam_policy_document.node["worker"].statement : s if s.sid == "Image"]) == 0
      && [for s in data.aws_iam_policy_document.node["head"].statement : one(s.resources) if s.sid == "Image"] == ["arn:aws:ecr:us-east-1:123456789012:repository/own/head"]
    )
    error_message = "a role reads its own ECR repository, if its image lies in one"
  }
}

run "values_that_could_carry_shell_or_do_not_fit_are_refused" {
  command = plan
  variables {
    name         = "a; reboot"
    head_image   = "own/head:1 --privileged"
    region       = "us-east-1$(id)"
    model_mirror = "s3://models/a b"
    ttl_hours    = 0
    ray_token    = "short"
    workers = {
      "a b" = {
        instance_type   = "m7i.large"
        max_size        = 1
        on_demand_base  = 0
        spot_percentage = 101
        volume_gb       = 100
        ray_resources   = {}
        ray_labels      = { "a=b" = "c,d" }
      }
    }
  }
  expect_failures = [var.name, var.head_image, var.region, var.model_mirror, var.ttl_hours, var.ray_token, var.workers]
}
