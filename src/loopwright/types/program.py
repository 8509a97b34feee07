"""What is kept of a program that an agent is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """The output of one program, standard output and errors as they came. The middle of a long output is left out.

    `runner` names which of several programs it was. `exit_code` is None if the program was ended by us.
    """

    runner: str
    text: str = ""
    exit_code: int | None = None
    verifier: str = ""
    """The verifier's output, if there was one."""
    start_seconds: float = 0.0
    """From the beginning of the set-up to the first model call."""
    run_seconds: float = 0.0
    """From the first model call to the end."""
