locals {
  emulated = var.aws_endpoint != ""
  # The services this module calls; an emulation answers all of them at one address.
  services = local.emulated ? { endpoint = var.aws_endpoint } : {}
}

provider "aws" {
  region = var.region

  default_tags {
    tags = local.tags
  }

  # Only for an emulation of AWS, which takes any key. On AWS credentials come from the environment, as ever.
  access_key                  = local.emulated ? "testing" : null
  secret_key                  = local.emulated ? "testing" : null
  skip_credentials_validation = local.emulated
  skip_metadata_api_check     = local.emulated
  skip_region_validation      = local.emulated
  s3_use_path_style           = local.emulated
  # An emulation answers 500 to what it does not know, which is retried for minutes by default.
  max_retries = local.emulated ? 2 : 25

  dynamic "endpoints" {
    for_each = local.services
    content {
      autoscaling = endpoints.value
      cloudwatch  = endpoints.value
      ec2         = endpoints.value
      iam         = endpoints.value
      kms         = endpoints.value
      logs        = endpoints.value
      s3          = endpoints.value
      ssm         = endpoints.value
      sts         = endpoints.value
    }
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  account   = data.aws_caller_identity.current.account_id
  partition = data.aws_partition.current.partition
  tags = {
    "specsweep:fleet" = var.name
  }
}
