"""Tries MIG on one card that nobody holds: makes and destroys each profile at each start, and times each step.

The card gets back the mode that it had, whatever happens. Before the first change, a file says how the card was, and
before each instance which one is about to be made. A run that is killed leaves the file; the next trial restores the
card first. Only the instance that the file names is ever destroyed, so slices that others have made since stay.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tessera.accept.checks import Finding, Status
from tessera.mig.models import model_by_product
from tessera.mig.names import ci_profile_index, resource_spelling
from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.interface import GiProfileInfo, GpuInfo, GpuUuid, MigModeResult, Nvml
from tessera.text import UserError, count_noun, one_line

#: The file in the state folder.
FILE = "accept-mig.json"
_ERROR = 300


class MigTrialError(UserError):
    """The trial cannot begin, or the card could not be restored; the text says what to do."""


class SliceTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One instance: the seconds of each step, and what went wrong.

    Attributes:
        profile: the GPU instance's profile.
        start: its first memory slot.
        create: seconds to make the GPU instance and its compute instance.
        destroy: seconds to destroy both.
        device_files: files that a container would need, apart from those of the whole card.
        error: NVML's words; empty if all steps succeeded.
    """

    profile: str
    start: int
    create: float = 0.0
    destroy: float = 0.0
    device_files: int = 0
    error: str = ""


class MigTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial.

    Attributes:
        card: NVML's index.
        product: the card's name.
        enable: seconds until MIG mode was on; 0 if it was.
        disable: seconds until it was off again; 0 if it stayed on.
        slices: every profile at every start.
        geometry: differences from the model's table; empty if there are none.
        table: the model of the table that was compared; empty without one.
    """

    card: int
    product: str
    enable: float
    disable: float
    slices: tuple[SliceTrial, ...]
    geometry: tuple[str, ...]
    table: str = ""


class _Before(msgspec.Struct, frozen=True, kw_only=True):
    """How the card was, and the instance that is being tried."""

    gpu: GpuUuid
    mig_enabled: bool
    profile: str = ""
    start: int = -1


class MigTrier:
    """Runs a trial.

    Args:
        nvml: the cards, open.
        now: seconds that never run backwards.
        folder: where the file is kept; it survives this process.
        say: told what happens to the card.
    """

    def __init__(self, nvml: Nvml, now: Callable[[], float], folder: Path, say: Callable[[str], None]) -> None:
        self._nvml, self._now, self._say = nvml, now, say
        self._path = folder / FILE

    def restore(self) -> None:
        """Restores the card of a trial that was killed; does nothing without one.

        Raises:
            MigTrialError: the file cannot be read, or the card cannot be restored.
        """
        try:
            before = msgspec.json.decode(self._path.read_bytes(), type=_Before)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise MigTrialError(
                f"{self._path}: {error}; set the card's MIG mode by hand and delete the file"
            ) from error
        self._say(f"an earlier trial was killed: restoring {before.gpu}")
        self._give_back(before)

    def run(self, card: GpuInfo) -> MigTrial:
        """Tries every profile at every start.

        Raises:
            MigTrialError: somebody holds the card, it has no MIG, or it could not be restored.
            NvmlError: the mode cannot be set.
        """
        self._check_free(card)
        before = _Before(gpu=card.uuid, mig_enabled=card.mig_enabled)
        self._write(before)
        try:
            enable = 0.0 if card.mig_enabled else self._set_mode(card.uuid, True)
            profiles = self._nvml.gi_profiles(card.uuid)
            slices = tuple(self._try_slice(before, row, start) for row in profiles for start in row.starts)
        finally:
            began = self._now()
            self._give_back(before)
        model = model_by_product(card.name)
        return MigTrial(
            card=card.index,
            product=card.name,
            enable=round(enable, 4),
            disable=0.0 if card.mig_enabled else round(self._now() - began, 4),
            slices=slices,
            geometry=tuple(compare_geometry(card.name, profiles)),
            table=model.short_name if model is not None and model.table is not None else "",
        )

    def _check_free(self, card: GpuInfo) -> None:
        if not card.readable or not card.mig_capable:
            raise MigTrialError(f"card {card.index}: {card.problem or 'it has no MIG mode'}")
        processes = [each.pid for each in self._nvml.processes(card.uuid)]
        if processes:
            raise MigTrialError(f"card {card.index}: processes {processes[:5]} use it; drain the node first")
        if self._nvml.instances(card.uuid):
            raise MigTrialError(f"card {card.index}: it has MIG instances; remove its layout or its pods first")
        if card.mig_enabled != card.mig_pending:
            raise MigTrialError(f"card {card.index}: a change of its MIG mode is pending; reset the card first")

    def _set_mode(self, gpu: GpuUuid, enabled: bool) -> float:
        """Seconds until the card has the mode, with a reset if the card needs one."""
        began = self._now()
        result = self._nvml.set_mig_mode(gpu, enabled)
        if result is MigModeResult.RESET_REQUIRED:
            self._nvml.reset(gpu)
        elif result is MigModeResult.IN_USE:
            raise MigTrialError(
                f"MIG mode of {gpu} is pending: another client of the driver holds the card; stop metrics exporters and"
                " persistence daemons of other software, and try again"
            )
        return self._now() - began

    def _try_slice(self, before: _Before, row: GiProfileInfo, start: int) -> SliceTrial:
        gpu = before.gpu
        self._write(msgspec.structs.replace(before, profile=row.name, start=start))
        began = self._now()
        try:
            gi_id = self._nvml.create_gpu_instance(gpu, row.name, start)
            compute = self._nvml.create_compute_instance(gpu, gi_id, ci_profile_index(row.compute_slices))
            created = self._now()
            files = self._device_files(gpu, gi_id, compute.ci_id)
            between = self._now()
            self._nvml.destroy_compute_instance(gpu, gi_id, compute.ci_id)
            self._nvml.destroy_gpu_instance(gpu, gi_id)
        except NvmlError as error:
            self._destroy(gpu, row.name, start)
            return SliceTrial(profile=row.name, start=start, error=one_line(error, _ERROR))
        return SliceTrial(
            profile=row.name,
            start=start,
            create=round(created - began, 4),
            destroy=round(self._now() - between, 4),
            device_files=files,
        )

    def _device_files(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> int:
        with suppress(NotSupported):
            return len(self._nvml.device_files(gpu, gi_id, ci_id))
        return 0

    def _destroy(self, gpu: GpuUuid, profile: str, start: int) -> None:
        """Destroys the instance at this place, if there is one that nobody computes on."""
        for instance in self._nvml.instances(gpu):
            if (instance.profile, instance.start) == (profile, start):
                for compute in instance.compute_instances:
                    self._nvml.destroy_compute_instance(gpu, instance.gi_id, compute.ci_id)
                self._nvml.destroy_gpu_instance(gpu, instance.gi_id)

    def _give_back(self, before: _Before) -> None:
        """Gives the card its mode again, and removes the file."""
        try:
            newest = msgspec.json.decode(self._path.read_bytes(), type=_Before)
            self._destroy(before.gpu, newest.profile, newest.start)
            card = next(each for each in self._nvml.devices() if each.uuid == before.gpu)
            left = self._nvml.instances(before.gpu)
            if (card.mig_enabled, card.mig_pending) != (before.mig_enabled, before.mig_enabled):
                if left:
                    raise MigTrialError(
                        f"card {card.index}: others have made {count_noun(len(left), 'instance')} since"
                    )
                self._set_mode(before.gpu, before.mig_enabled)
        except (NvmlError, UserError, StopIteration, OSError) as error:
            raise MigTrialError(
                f"MIG mode of {before.gpu} was {'on' if before.mig_enabled else 'off'} and could not be restored:"
                f" {one_line(error, _ERROR)}; {self._path} says how it was, and the next trial restores it"
            ) from error
        self._path.unlink(missing_ok=True)
        self._say(f"MIG mode of {before.gpu} is {'on' if before.mig_enabled else 'off'}, as before")

    def _write(self, before: _Before) -> None:
        new = self._path.with_name(f"{FILE}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(before))
            new.replace(self._path)
        except OSError as error:
            raise MigTrialError(
                f"{self._path}: {error.strerror}; name a folder that you may write: --state-dir"
            ) from error


def compare_geometry(product: str, profiles: Sequence[GiProfileInfo]) -> Iterator[str]:
    """The differences between the card's profiles and those of the model's table."""
    model = model_by_product(product)
    if model is None or model.table is None:
        return
    table = {row.spelling: row for row in model.table.profiles}
    names = {resource_spelling(alias): row.spelling for row in model.table.profiles for alias in row.aliases}
    spelled = {resource_spelling(row.name): row for row in profiles}
    found = {names.get(name, name): row for name, row in spelled.items()}
    for name in sorted(table.keys() - found.keys()):
        yield f"{name}: in the table, not on the card"
    for name in sorted(found.keys() - table.keys()):
        yield f"{name}: on the card, not in the table"
    for name in sorted(found.keys() & table.keys()):
        card, row = found[name], table[name]
        for field in ("size", "starts", "compute_slices", "max_count"):
            if getattr(card, field) != getattr(row, field):
                yield f"{name}: {field} {getattr(card, field)} on the card, {getattr(row, field)} in the table"


def judge_trial(trial: MigTrial) -> Finding:
    """Every instance could be made and destroyed, and the card's geometry is that of the table."""
    failed = [f"{each.profile} at {each.start}: {each.error}" for each in trial.slices if each.error]
    done = [each for each in trial.slices if not each.error]
    slowest = max((each.create for each in done), default=0.0)
    made = f"{len(done)} of {count_noun(len(trial.slices), 'instance')} made and destroyed"
    if not trial.table:
        table = "no table of this model"
    elif trial.geometry:
        table = f"{count_noun(len(trial.geometry), 'difference')} from the table of {trial.table}"
    else:
        table = f"geometry as in the table of {trial.table}"
    text = f"card {trial.card}: {made}, each made within {slowest:.3g} s; {table}"
    bad = failed or trial.geometry or not done
    return Finding(Status.FAILED if bad else Status.OK, text, [*failed, *trial.geometry])
