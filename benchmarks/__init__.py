"""Measurements of this tool itself. Each prints a table and the command that makes it again."""
