terraform {
  # 1.11 is the first with write-only attributes, which keep the secrets out of the state.
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source = "hashicorp/aws"
      # Exactly what the tests ran with. A lock file would hold the plugin's checksums for some platforms and fail on others.
      version = "5.100.0"
    }
  }

  # The state lies in the fleet's folder: init -backend-config=path=...
  backend "local" {}
}
