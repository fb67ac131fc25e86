"""Examples below a command's help."""


def examples(*commands: str) -> str:
    """The epilog that shows `orchestrator COMMAND` for each, on a line of its own (Typer joins single lines)."""
    return "\n\n".join(["Examples:", *(f"orchestrator {command}" for command in commands)])
