resource "aws_cloudwatch_log_group" "nodes" {
  name              = "/specsweep/${var.name}/nodes"
  kms_key_id        = aws_kms_key.fleet.arn
  retention_in_days = 365
}

resource "aws_cloudwatch_log_group" "flow" {
  name              = "/specsweep/${var.name}/flow"
  kms_key_id        = aws_kms_key.fleet.arn
  retention_in_days = 365
}

# The money guard behind the lease: a group none of whose nodes did anything for an hour goes to zero. It needs neither
# head nor driver, so it also ends workers whose head has died. Fetching a large model is shorter than an hour.
resource "aws_cloudwatch_metric_alarm" "idle" {
  for_each            = var.workers
  alarm_name          = "${var.name}-${each.key}-idle"
  alarm_description   = "No node of the group used its CPUs for an hour: scale to zero"
  namespace           = "AWS/EC2"
  metric_name         = "CPUUtilization"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.workers[each.key].name }
  statistic           = "Maximum"
  comparison_operator = "LessThanThreshold"
  threshold           = 5
  period              = 300
  evaluation_periods  = 12
  # No nodes, no figures: nothing to end.
  treat_missing_data = "notBreaching"
  alarm_actions      = [aws_autoscaling_policy.to_zero[each.key].arn]
}

resource "aws_autoscaling_policy" "to_zero" {
  for_each               = var.workers
  name                   = "${local.asg_names[each.key]}-to-zero"
  autoscaling_group_name = aws_autoscaling_group.workers[each.key].name
  policy_type            = "SimpleScaling"
  adjustment_type        = "ExactCapacity"
  scaling_adjustment     = 0
}
