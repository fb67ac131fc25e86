"""The lease: a scheduled action on every group of a fleet's workers, which scales it to zero at a set time. AWS carries
it out even when head, sweep and the user's machine are all dead; who still needs the nodes moves it on."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from orchestrator.fleet_aws import Aws, Group, aws_errors, groups_of

ACTION = "specsweep-lease"
SOONEST = timedelta(minutes=1)
"""AWS refuses a scheduled action in the past."""


def set_lease(aws: Aws, groups: Sequence[Group], end: datetime) -> datetime:
    """Let all groups go to zero at `end`, instead of when they would have. The time that was set."""
    end = max(end, datetime.now(UTC) + SOONEST).replace(microsecond=0)
    for group in groups:
        with aws_errors(f"setting the lease of {group.name}"):
            aws.client("autoscaling").put_scheduled_update_group_action(
                AutoScalingGroupName=group.name,
                ScheduledActionName=ACTION,
                StartTime=end,
                MinSize=0,
                DesiredCapacity=0,
            )
    return end


def lease_of(aws: Aws, group: Group) -> datetime | None:
    """When the group goes to zero by itself; None: never, or it did already."""
    with aws_errors(f"reading the lease of {group.name}"):
        actions = aws.client("autoscaling").describe_scheduled_actions(
            AutoScalingGroupName=group.name, ScheduledActionNames=[ACTION]
        )["ScheduledUpdateGroupActions"]
    start = actions[0]["StartTime"] if actions else None
    return start.astimezone(UTC) if isinstance(start, datetime) else None


def release(aws: Aws, fleet: str) -> list[str]:
    """Scale all workers to zero now. Names of the groups that had any."""
    held = [group for group in groups_of(aws, fleet) if group.desired_size or group.in_service]
    for group in held:
        with aws_errors(f"releasing {group.name}"):
            aws.client("autoscaling").update_auto_scaling_group(
                AutoScalingGroupName=group.name, MinSize=0, DesiredCapacity=0
            )
    return [group.name for group in held]


def scale(aws: Aws, group: Group, num_nodes: int) -> None:
    """Set the desired size.

    The group's idle alarm begins anew: as long as it stays in ALARM, from an hour in which nothing was measured, AWS
    may go on scaling the group to zero while its new nodes boot.
    """
    with aws_errors(f"scaling {group.name}"):
        watch = aws.client("cloudwatch")
        for alarm in watch.describe_alarms(AlarmNames=[f"{group.name}-idle"])["MetricAlarms"]:
            watch.set_alarm_state(AlarmName=alarm["AlarmName"], StateValue="OK", StateReason="nodes were asked for")
        aws.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=num_nodes, HonorCooldown=False
        )
