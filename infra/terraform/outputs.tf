output "region" {
  description = "AWS region."
  value       = var.region
}

output "availability_zones" {
  description = "Of the private subnets, the head's first."
  value       = var.availability_zones
}

output "head_instance_id" {
  description = "For Session Manager."
  value       = aws_instance.head.id
}

output "head_private_ip" {
  description = "The head's address within the network."
  value       = local.head_private_ip
}

output "ray_address" {
  description = "HOST:PORT of Ray's GCS."
  value       = "${local.head_private_ip}:6379"
}

output "mlflow_uri" {
  description = "MLflow within the network; user admin."
  value       = "http://${local.head_private_ip}:5000"
}

output "results_bucket" {
  description = "Bucket of results and of MLflow's artifacts."
  value       = aws_s3_bucket.results.id
}

output "asg_names" {
  description = "Hardware profile -> name of its Auto Scaling group."
  value       = { for profile, group in aws_autoscaling_group.workers : profile => group.name }
}

output "secret_parameters" {
  description = "Secret -> name of its SSM parameter."
  value       = { for secret, parameter in local.secret_parameters : secret => parameter.name }
}

output "vpc_id" {
  description = "The fleet's network."
  value       = aws_vpc.fleet.id
}
