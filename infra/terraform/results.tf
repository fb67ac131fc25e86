# Without force_destroy: a bucket that still holds results is not destroyed.
resource "aws_s3_bucket" "results" {
  #checkov:skip=CKV_AWS_18:One role writes here, and the log would outlive the fleet in a bucket of its own
  #checkov:skip=CKV_AWS_144:fleet down brings results home, checked, before the bucket goes
  #checkov:skip=CKV2_AWS_62:Nothing waits for objects
  bucket = var.results_bucket != "" ? var.results_bucket : "specsweep-${var.name}-${local.account}"
}

resource "aws_s3_bucket_public_access_block" "results" {
  bucket                  = aws_s3_bucket.results.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "results" {
  bucket = aws_s3_bucket.results.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_versioning" "results" {
  bucket = aws_s3_bucket.results.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "results" {
  bucket = aws_s3_bucket.results.id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.fleet.arn
    }
    # One call to KMS a bucket rather than one an object.
    bucket_key_enabled = true
  }
}

# An emulation takes this policy at its word and refuses its own plain HTTP.
resource "aws_s3_bucket_policy" "results" {
  count  = local.emulated ? 0 : 1
  bucket = aws_s3_bucket.results.id
  policy = data.aws_iam_policy_document.tls_only.json
}

data "aws_iam_policy_document" "tls_only" {
  statement {
    sid       = "TlsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.results.arn, "${aws_s3_bucket.results.arn}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

# The provider waits a minute for an emulation to show it.
resource "aws_s3_bucket_lifecycle_configuration" "results" {
  count  = local.emulated ? 0 : 1
  bucket = aws_s3_bucket.results.id
  rule {
    id     = "broken-uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}
