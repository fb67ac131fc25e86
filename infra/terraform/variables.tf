variable "name" {
  description = "Fleet name: prefix of every name, and the value of the tag specsweep:fleet."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,23}$", var.name))
    error_message = "name must be at most 24 lower-case letters, digits and dashes, and begin with a letter."
  }
}

variable "region" {
  description = "AWS region."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must look like us-east-1."
  }
}

variable "availability_zones" {
  description = "Zones of the private subnets, the head's first."
  type        = list(string)
  validation {
    condition     = length(var.availability_zones) >= 1 && length(var.availability_zones) <= 8
    error_message = "availability_zones takes one to eight zones."
  }
}

variable "vpc_cidr" {
  description = "Addresses of the network, between /16 and /20."
  type        = string
  default     = "10.42.0.0/16"
  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && can(regex("/(1[6-9]|20)$", var.vpc_cidr))
    error_message = "vpc_cidr must be an IPv4 range between /16 and /20."
  }
}

variable "head_instance_type" {
  description = "Instance type of the head, which runs the driver, MLflow and Ray's control plane."
  type        = string
  default     = "m7i.large"
}

variable "head_volume_gb" {
  description = "Size of the head's volume, which holds results and MLflow's database until they are in S3."
  type        = number
  default     = 100
}

variable "workers" {
  description = "Hardware profile -> its Auto Scaling group, which is made without nodes."
  type = map(object({
    instance_type   = string
    min_size        = optional(number, 0)
    max_size        = number
    on_demand_base  = number
    spot_percentage = number
    volume_gb       = number
    ray_resources   = map(number)
    ray_labels      = map(string)
  }))
  validation {
    condition     = length(var.workers) > 0 && alltrue([for profile in keys(var.workers) : can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$", profile))])
    error_message = "workers needs at least one profile; names are at most 40 letters, digits, dashes and underscores."
  }
  validation {
    condition     = alltrue([for w in values(var.workers) : 0 <= w.min_size && w.min_size <= w.max_size])
    error_message = "workers: every profile needs min_size <= max_size."
  }
  validation {
    condition     = alltrue([for w in values(var.workers) : w.spot_percentage >= 0 && w.spot_percentage <= 100])
    error_message = "workers: spot_percentage must lie between 0 and 100."
  }
  # Ray takes labels as one string k=v,k=v.
  validation {
    condition     = alltrue(flatten([for w in values(var.workers) : [for k, v in w.ray_labels : can(regex("^[A-Za-z0-9._/-]+$", k)) && can(regex("^[A-Za-z0-9._-]+$", v))]]))
    error_message = "workers: ray_labels take letters, digits, dots, dashes and underscores."
  }
}

variable "head_image" {
  description = "Container image of the head."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9][A-Za-z0-9._:/@-]*$", var.head_image))
    error_message = "head_image must be an image reference: registry/repository:tag or @sha256:digest."
  }
}

variable "worker_image" {
  description = "Container image of the workers."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9][A-Za-z0-9._:/@-]*$", var.worker_image))
    error_message = "worker_image must be an image reference: registry/repository:tag or @sha256:digest."
  }
}

variable "model_mirror" {
  description = "Model files in S3, s3://bucket/prefix, which nodes may read; empty: none."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^(s3://[a-z0-9.-]+(/[A-Za-z0-9._/-]*)?)?$", var.model_mirror))
    error_message = "model_mirror must be empty or look like s3://bucket/prefix."
  }
}

variable "results_bucket" {
  description = "Bucket to make for results; empty: named after fleet and account."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$", var.results_bucket))
    error_message = "results_bucket must be empty or a valid bucket name."
  }
}

variable "ttl_hours" {
  description = "The head shuts itself down, and so terminates, this long after its first boot."
  type        = number
  validation {
    condition     = var.ttl_hours > 0 && var.ttl_hours <= 720
    error_message = "ttl_hours must lie between 0 and 720 (30 days)."
  }
}

variable "mlflow_allowed_hosts" {
  description = "Host headers MLflow answers besides loopback and the head's address."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for host in var.mlflow_allowed_hosts : can(regex("^[A-Za-z0-9.*:-]+$", host))])
    error_message = "mlflow_allowed_hosts takes host names with an optional :port."
  }
}

variable "aws_endpoint" {
  description = "Address of an emulation of AWS, for tests; empty on AWS."
  type        = string
  default     = ""
}

# Ephemeral: neither plan nor state can hold them. Give them as TF_VAR_... in the environment.
variable "ray_token" {
  description = "Token of the Ray cluster."
  type        = string
  sensitive   = true
  ephemeral   = true
  validation {
    condition     = can(regex("^[!-~]{16,}$", var.ray_token))
    error_message = "ray_token must be at least 16 printable characters without spaces."
  }
}

variable "mlflow_password" {
  description = "Password of MLflow's user admin."
  type        = string
  sensitive   = true
  ephemeral   = true
  validation {
    condition     = can(regex("^[!-~]{12,}$", var.mlflow_password))
    error_message = "mlflow_password must be at least 12 printable characters without spaces."
  }
}

variable "hf_token" {
  description = "Hugging Face token for gated models; empty: none."
  type        = string
  sensitive   = true
  ephemeral   = true
  default     = ""
  validation {
    condition     = can(regex("^[!-~]*$", var.hf_token))
    error_message = "hf_token must be printable characters without spaces."
  }
}

variable "hf_token_version" {
  description = "Raise it to have the next apply write hf_token again."
  type        = number
  default     = 1
}
