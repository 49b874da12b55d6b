"""Reads the instructions of an agent's slice state machine."""

from tessera.agent.slices.events import ExecutorReady, GpuCall, RemoveCdiFiles, ReportProblem, SaveJournal, WaitUntil
from tessera.agent.slices.state_machine import SliceStateMachine


def next_instruction(machine: SliceStateMachine, gpu: str, now: float) -> GpuCall | WaitUntil:
    """Returns the one instruction for a card whose executor is ready."""
    (instruction,) = machine.handle(ExecutorReady(gpu, now))
    assert not isinstance(instruction, ReportProblem | RemoveCdiFiles | SaveJournal)
    return instruction
