# One key for the fleet's secrets, results and logs. It goes with the fleet, after AWS's shortest waiting time.
resource "aws_kms_key" "fleet" {
  description             = "specsweep fleet ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7
  policy                  = data.aws_iam_policy_document.key.json
}

data "aws_iam_policy_document" "key" {
  #checkov:skip=CKV_AWS_109:A key's own policy must leave it to its account, or nobody can manage it
  #checkov:skip=CKV_AWS_111:A key's own policy must leave it to its account, or nobody can manage it
  #checkov:skip=CKV_AWS_356:In a key's own policy * is this key
  # Who may use the key is then said by IAM policies of this account.
  statement {
    sid       = "Account"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["arn:${local.partition}:iam::${local.account}:root"]
    }
  }
  statement {
    sid       = "Logs"
    actions   = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
    resources = ["*"]
    principals {
      type        = "Service"
      identifiers = ["logs.${var.region}.amazonaws.com"]
    }
    condition {
      test     = "ArnLike"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values   = ["arn:${local.partition}:logs:${var.region}:${local.account}:log-group:/specsweep/${var.name}*"]
    }
  }
}

resource "aws_kms_alias" "fleet" {
  name          = "alias/specsweep-${var.name}"
  target_key_id = aws_kms_key.fleet.key_id
}

# value_wo is sent to AWS and kept nowhere else. Ray's token and MLflow's password are the fleet's for life: its head has
# them in memory and in MLflow's database.
resource "aws_ssm_parameter" "ray_token" {
  name             = "/specsweep/${var.name}/ray_token"
  description      = "Token of the Ray cluster"
  type             = "SecureString"
  key_id           = aws_kms_key.fleet.arn
  value_wo         = var.ray_token
  value_wo_version = 1
}

resource "aws_ssm_parameter" "mlflow_password" {
  name             = "/specsweep/${var.name}/mlflow_password"
  description      = "Password of MLflow's user admin"
  type             = "SecureString"
  key_id           = aws_kms_key.fleet.arn
  value_wo         = var.mlflow_password
  value_wo_version = 1
}

resource "aws_ssm_parameter" "hf_token" {
  name        = "/specsweep/${var.name}/hf_token"
  description = "Hugging Face token, or the word none"
  type        = "SecureString"
  key_id      = aws_kms_key.fleet.arn
  # A parameter cannot be empty, and whether it exists cannot depend on a value that nothing may keep.
  value_wo         = var.hf_token == "" ? "none" : var.hf_token
  value_wo_version = var.hf_token_version
}

locals {
  secret_parameters = {
    ray_token       = aws_ssm_parameter.ray_token
    mlflow_password = aws_ssm_parameter.mlflow_password
    hf_token        = aws_ssm_parameter.hf_token
  }
}
