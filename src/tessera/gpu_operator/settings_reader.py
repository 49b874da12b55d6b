"""Reads the settings that Tessera follows from NVIDIA's gpu-operator: its Helm values file, or its ``ClusterPolicy``.

Tessera follows the settings of sharing and of MIG: the strategy, the ConfigMaps of profiles and layouts with their
defaults, the way in which containers learn of their devices, and the errors that count as ill health. It also follows
those of drivers, which become objects (:mod:`tessera.gpu_operator.driver_objects`).
:mod:`tessera.gpu_operator.keys` checks everything else, and :mod:`tessera.gpu_operator.without_effect`
has the reason why it has no effect. A component that is switched off is off here too, and not reported.

A values file lies on top of the chart's own values, so a missing key means the chart's value. There are two exceptions,
both with a notice. The chart's layout for nodes without a label, which turns MIG off on their cards, counts only if the
file contains it. If the file names no ConfigMap, Tessera's own counts.

Neither file names the namespace of the ConfigMaps; ``helm --namespace`` does. A running operator has it in the status
of its ClusterPolicy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tessera.api.mig_layouts import parse_layouts
from tessera.api.problems import FileRefused, Notice, Problem, ProblemCollector, join_path, quote_value
from tessera.api.sharing.profile import DEVICE_LIST_STRATEGIES, MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.gpu_operator.driver_objects import InstalledDrivers, drivers_of_policy, drivers_of_values
from tessera.gpu_operator.driver_policy import DRIVER_ROOT, DriverPolicy
from tessera.gpu_operator.keys import POLICY, VALUES, as_rendered, check_keys
from tessera.gpu_operator.policy_objects import POLICY_API, POLICY_KIND
from tessera.gpu_operator.without_effect import SINGLE, list_unsupported
from tessera.kube.resources.meta import OBJECT_NAME
from tessera.text import one_line

#: The key of the values that Tessera's own chart has besides NVIDIA's.
OWN_KEY = "tessera"

DEVICE_ID_STRATEGIES = ("uuid", "index")


class NamedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap that the settings name.

    Attributes:
        name: empty for Tessera's own.
        default: the entry for nodes without a label; empty for none.
        data: content of the ConfigMap; None if Tessera does not make it.
    """

    name: str = ""
    default: str = ""
    data: Mapping[str, str] | None = None


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that Tessera follows.

    Attributes:
        mig_strategy: how cards in MIG mode are advertised.
        sharing: the sharing profiles.
        layouts: the MIG layouts.
        mig_reboot: a node may be rebooted for a change of layout.
        device_list_strategies: how containers learn of their devices; None for the agent's default.
        device_id_strategy: of :data:`DEVICE_ID_STRATEGIES`; None for the agent's default.
        pass_device_specs: device nodes are named in the answers to kubelet too.
        mps_root: host folder of the MPS daemons; None for the agent's default.
        kubelet_root: kubelet's ``--root-dir``; None for the usual one.
        health: the environment variables that choose which errors count, with their values.
        namespace: the operator's namespace, if the file has it.
        driver_objects: the ClusterPolicy and the NVIDIADriver by which Tessera installs drivers; none if the hosts have
            theirs.
        drivers: the meaning of these objects.
        notices: settings without effect, or with another effect than upstream.
    """

    mig_strategy: MigStrategy
    sharing: NamedConfig = NamedConfig()
    layouts: NamedConfig = NamedConfig()
    mig_reboot: bool = False
    device_list_strategies: tuple[str, ...] | None = None
    device_id_strategy: str | None = None
    pass_device_specs: bool = False
    mps_root: str | None = None
    kubelet_root: str | None = None
    health: Mapping[str, str] = {}
    namespace: str = ""
    driver_objects: tuple[dict[str, Any], ...] = ()
    drivers: tuple[DriverPolicy, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def driver_root(self) -> str:
        """Host folder with the files of driver containers; empty for the usual place, and for no drivers."""
        return next((each.driver_root for each in self.drivers if each.driver_root != DRIVER_ROOT), "")


#: The chart's value of ``mig.strategy`` since its version 1.7; without one a ClusterPolicy leaves it to the device
#: plugin, whose default is ``none``.
CHART_STRATEGY = MigStrategy.SINGLE
POLICY_STRATEGY = MigStrategy.NONE

T = TypeVar("T")

#: Keys at the top of files that are often taken for values.
_OF_OTHERS = frozenset({"version", "sharing", "flags", "mig-configs"})
_HEALTH_ENV = ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")
_SPECS = "PASS_DEVICE_SPECS"

#: Texts for true, as in Go's ``strconv.ParseBool``.
_TRUTHS = {**dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
           **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False", ""), False)}  # fmt: skip


def read_settings(document: Any, drivers: bool | None = None) -> OperatorSettings:
    """Returns the settings of a loaded document: values, or a ClusterPolicy if its kind says so.

    Args:
        document: the loaded document.
        drivers: True if Tessera must install drivers; None leaves it to the document.

    Raises:
        FileRefused: it has mistakes; all of them are listed.
    """
    problems: list[Problem] = []
    dropped: list[Notice] = []
    if not isinstance(document, Mapping) or "kind" not in document:
        document = as_rendered(document, "", VALUES, dropped)
    settings = _collect_problems(problems, lambda: _settings(document))
    part = _collect_problems(problems, lambda: _drivers(document, drivers))
    if settings is None or part is None:
        raise FileRefused(list(dict.fromkeys(problems)))
    return msgspec.structs.replace(
        settings,
        driver_objects=part.objects,
        drivers=part.policies,
        notices=tuple(sorted({*dropped, *settings.notices, *part.notices})),
    )


def _collect_problems(problems: list[Problem], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except FileRefused as refused:
        problems.extend(refused.problems)
        return None


def _drivers(document: Any, wanted: bool | None) -> InstalledDrivers:
    if not isinstance(document, Mapping):
        return drivers_of_values({}, wanted)
    return drivers_of_policy(document, wanted) if "kind" in document else drivers_of_values(document, wanted)


def _settings(document: Any) -> OperatorSettings:
    found = ProblemCollector()
    if not isinstance(document, Mapping) or "kind" not in document:
        notices = [*_own_values(document)]
        nvidias = {key: document[key] for key in document if key != OWN_KEY} if notices else document
        if isinstance(nvidias, Mapping) and not nvidias.keys() & VALUES.keys() and nvidias.keys() & _OF_OTHERS:
            text = "is a sharing profile or a file of MIG layouts, and no file of values; put it into a ConfigMap"
            found.add("", f"{text} that devicePlugin.config.name or migManager.config.name names")
        fields = check_keys(found, nvidias, "", VALUES, notices)
        settings = _SettingsReader(found, fields, "", CHART_STRATEGY).settings()
        return msgspec.structs.replace(settings, notices=(*settings.notices, *notices))
    if (document.get("apiVersion"), document["kind"]) != (POLICY_API, POLICY_KIND):
        text = f"must be a values file or a {POLICY_KIND} of {POLICY_API}, not a {quote_value(document['kind'])}"
        raise FileRefused([Problem("kind", text)])
    strange: list[Notice] = []
    fields = check_keys(found, document.get("spec"), "spec", POLICY, strange)
    status = document.get("status")
    namespace = status.get("namespace") if isinstance(status, Mapping) else None
    settings = _SettingsReader(found, fields, "spec", POLICY_STRATEGY).settings()
    return msgspec.structs.replace(
        settings,
        namespace=namespace if isinstance(namespace, str) else "",
        notices=(*settings.notices, *strange),
    )


def _own_values(document: Any) -> Sequence[Notice]:
    """A notice that only Helm follows Tessera's own values, if a values file of its chart has any."""
    if not isinstance(document, Mapping) or OWN_KEY not in document:
        return ()
    text = "values of Tessera's Helm chart: Helm checks and follows them; tessera install has options instead"
    return (Notice(OWN_KEY, text),)


class _SettingsReader:
    """Collects mistakes and notices of one file while it is read."""

    def __init__(self, found: ProblemCollector, fields: Mapping[str, Any], path: str, strategy: MigStrategy) -> None:
        self.found = found
        self.fields = fields
        self.path = path
        self.strategy = strategy
        self.notices: list[Notice] = []

    def settings(self) -> OperatorSettings:
        """Returns all settings that Tessera follows, and ends the reading."""
        plugin_env, mig_env = self._env("devicePlugin"), self._env("migManager")
        lists = plugin_env.get("DEVICE_LIST_STRATEGY")
        ids = plugin_env.get("DEVICE_ID_STRATEGY")
        settings = OperatorSettings(
            mig_strategy=self._mig_strategy(plugin_env.get("MIG_STRATEGY")),
            sharing=self._sharing_config(),
            layouts=self._layouts(),
            mig_reboot=self._truth(mig_env.get("WITH_REBOOT", ""), "migManager.env.WITH_REBOOT"),
            device_list_strategies=None if not lists else self._list_strategies(lists),
            device_id_strategy=None
            if not ids
            else self._choice(ids, _env_path("DEVICE_ID_STRATEGY"), *DEVICE_ID_STRATEGIES),
            pass_device_specs=self._truth(plugin_env.get(_SPECS, ""), _env_path(_SPECS)),
            mps_root=self._mps_root(plugin_env),
            kubelet_root=self._folder("hostPaths.kubeletRootDir", self._text("hostPaths", "kubeletRootDir")),
            health={name: plugin_env[name] for name in _HEALTH_ENV if name in plugin_env},
        )
        self.notices += list_unsupported(self.fields, self.path)
        self.found.raise_problems()
        return msgspec.structs.replace(settings, notices=tuple(sorted(self.notices)))

    # Places

    def _at(self, path: str) -> str:
        return f"{self.path}.{path}" if self.path else path

    def _note(self, path: str, text: str) -> None:
        self.notices.append(Notice(self._at(path), text))

    def _note_single(self, path: str) -> None:
        self._note(path, f"no effect: {SINGLE[path]}")

    def _under(self, component: str, key: str) -> Mapping[str, Any]:
        value = self.fields.get(component, {}).get(key)
        return value if isinstance(value, Mapping) else {}

    def _text(self, component: str, key: str) -> str:
        return str(self.fields.get(component, {}).get(key, ""))

    def _env(self, component: str) -> Mapping[str, str]:
        return self._under(component, "env")

    def _off(self, component: str) -> bool:
        return self.fields.get(component, {}).get("enabled") is False

    def _choice(self, value: Any, path: str, *allowed: str) -> str:
        return self.found.choice(value, self._at(path), allowed)

    def _truth(self, text: str, path: str) -> bool:
        if text not in _TRUTHS:
            self.found.add(self._at(path), f'must be "true" or "false", not {quote_value(text)}')
        return _TRUTHS.get(text, False)

    # What is followed

    def _mig_strategy(self, env: str | None) -> MigStrategy:
        names = tuple(each.value for each in MigStrategy)
        written = self.fields.get("mig", {}).get("strategy")
        if written:
            if env and env != written:
                self._note(_env_path("MIG_STRATEGY"), f"no effect: mig.strategy is {written}, and counts")
            return MigStrategy(self._choice(written, "mig.strategy", *names))
        if env:
            return MigStrategy(self._choice(env, _env_path("MIG_STRATEGY"), *names))
        self._note("mig.strategy", f"not set, which is {self.strategy.value} as with NVIDIA's operator")
        return self.strategy

    def _sharing_config(self) -> NamedConfig:
        config = self._config("devicePlugin", parse_profile)
        if self._off("devicePlugin"):
            self._note_single("devicePlugin.enabled")
        if config.default and not config.name:
            self._note_single("devicePlugin.config.default")
            return NamedConfig()
        return config

    def _layouts(self) -> NamedConfig:
        config = self._config("migManager", parse_layouts)
        if self._off("migManager"):
            text = (
                "cards of nodes without the label nvidia.com/mig.config stay as they are; the label is still followed"
            )
            self._note("migManager.enabled", text)
            return NamedConfig()
        if not config.default:
            text = "not set: cards of nodes without a label stay as they are; NVIDIA's operator takes MIG off them"
            self._note("migManager.config.default", text)
        return config

    def _config(self, component: str, parse: Any) -> NamedConfig:
        path = f"{component}.config"
        config = self._under(component, "config")
        name, default = config.get("name", ""), config.get("default", "")
        if name and not OBJECT_NAME.fullmatch(name):
            rule = "write lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
            self.found.add(self._at(f"{path}.name"), f"{quote_value(name)} is no name of a ConfigMap: {rule}")
        data = dict(self._files(config.get("data"), f"{path}.data"))
        if not config.get("create"):
            if data:
                self._note(f"{path}.data", f"no effect: {SINGLE['config.data']}")
            return NamedConfig(name=name, default=default)
        if data and not name:
            self.found.add(self._at(f"{path}.name"), "missing; config.create needs the name of the ConfigMap to make")
        for key, text in data.items():
            self._check(text, join_path(self._at(f"{path}.data"), key), parse)
        if data and default and component == "devicePlugin" and default not in data:
            names = one_line(", ".join(sorted(data)))
            self.found.add(self._at(f"{path}.default"), f"{quote_value(default)} is none of config.data: {names}")
        return NamedConfig(name=name, default=default, data=data or None)

    def _files(self, value: Any, path: str) -> Iterator[tuple[str, str]]:
        for key, text in self.found.free_mapping(value, self._at(path)).items():
            yield key, self.found.text(text, join_path(self._at(path), key))

    def _check(self, text: str, path: str, parse: Any) -> None:
        try:
            parse(text)
        except FileRefused as refused:
            for problem in refused.problems:
                self.found.add(path, str(problem))

    def _list_strategies(self, text: str) -> tuple[str, ...]:
        path = _env_path("DEVICE_LIST_STRATEGY")
        chosen = tuple(self._choice(each.strip(), path, *DEVICE_LIST_STRATEGIES) for each in text.split(","))
        if "envvar" in chosen:
            text = (
                "envvar: where the NVIDIA runtime reads it, containers can name any device themselves; not so cdi-cri"
            )
            self._note(path, text)
        return tuple(dict.fromkeys(chosen))

    def _mps_root(self, env: Mapping[str, str]) -> str | None:
        written = self._under("devicePlugin", "mps").get("root")
        if written:
            return self._folder("devicePlugin.mps.root", written)
        return self._folder(_env_path("MPS_ROOT"), env.get("MPS_ROOT", ""))

    def _folder(self, path: str, folder: str) -> str | None:
        if folder and not folder.startswith("/"):
            self.found.add(self._at(path), f"{quote_value(folder)} is no folder of the host; begin it with /")
        return folder or None


def _env_path(name: str) -> str:
    return f"devicePlugin.env.{name}"
