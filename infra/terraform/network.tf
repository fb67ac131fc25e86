# Nodes have private addresses only. They reach registries, the Hugging Face hub and AWS through one NAT gateway, and S3
# through a gateway endpoint, which costs nothing. Nothing from outside reaches them: people come in through Session Manager.

resource "aws_vpc" "fleet" {
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

# A group that somebody forgets to name gets this one: it lets nothing through.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.fleet.id
}

resource "aws_subnet" "private" {
  count             = length(var.availability_zones)
  vpc_id            = aws_vpc.fleet.id
  availability_zone = var.availability_zones[count.index]
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, count.index)
  tags              = { Name = "${var.name}-private-${var.availability_zones[count.index]}" }
}

# Holds the NAT gateway and nothing else.
resource "aws_subnet" "public" {
  vpc_id            = aws_vpc.fleet.id
  availability_zone = var.availability_zones[0]
  cidr_block        = cidrsubnet(var.vpc_cidr, 8, 255)
  tags              = { Name = "${var.name}-public" }
}

resource "aws_internet_gateway" "fleet" {
  vpc_id = aws_vpc.fleet.id
  tags   = { Name = var.name }
}

resource "aws_eip" "nat" {
  domain     = "vpc"
  tags       = { Name = "${var.name}-nat" }
  depends_on = [aws_internet_gateway.fleet]
}

resource "aws_nat_gateway" "fleet" {
  allocation_id = aws_eip.nat.id
  subnet_id     = aws_subnet.public.id
  tags          = { Name = var.name }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.fleet.id
  tags   = { Name = "${var.name}-public" }
}

resource "aws_route" "public_out" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.fleet.id
}

resource "aws_route_table_association" "public" {
  subnet_id      = aws_subnet.public.id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.fleet.id
  tags   = { Name = "${var.name}-private" }
}

resource "aws_route" "private_out" {
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.fleet.id
}

resource "aws_route_table_association" "private" {
  count          = length(var.availability_zones)
  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private.id
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.fleet.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id]
  tags              = { Name = "${var.name}-s3" }
}

resource "aws_security_group" "nodes" {
  name        = "${var.name}-nodes"
  description = "Head and workers: they talk to each other, and out by HTTPS"
  vpc_id      = aws_vpc.fleet.id
  tags        = { Name = "${var.name}-nodes" }
}

# Ray opens ports of its own choice between nodes, so within the group all are open; there is no other ingress.
resource "aws_vpc_security_group_ingress_rule" "nodes" {
  security_group_id            = aws_security_group.nodes.id
  description                  = "Between nodes"
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "nodes" {
  security_group_id            = aws_security_group.nodes.id
  description                  = "Between nodes"
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "-1"
}

# DNS, time and the metadata service are not subject to security groups.
resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.nodes.id
  description       = "Registries, model hub, AWS"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_flow_log" "fleet" {
  vpc_id          = aws_vpc.fleet.id
  traffic_type    = "ALL"
  log_destination = aws_cloudwatch_log_group.flow.arn
  iam_role_arn    = aws_iam_role.flow_log.arn
  tags            = { Name = var.name }
}
