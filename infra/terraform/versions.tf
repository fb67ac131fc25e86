terraform {
  # 1.11 is the first with write-only attributes, which keep the secrets out of the state.
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }

  # The state lies in the fleet's folder: init -backend-config=path=...
  backend "local" {}
}
