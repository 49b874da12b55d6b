{{- /* The values of NVIDIA's chart as it reads them. */ -}}
{{- define "tessera.nvidia" -}}
{{- (include "tessera.read" (list "" (omit .Values "tessera") (.Files.Get "files/notices.json" | fromJson)) | fromJson).found | toJson -}}
{{- end -}}

{{- /*
Values below a path that NVIDIA's chart reads, and notes on the others: it ignores keys that it does not have, Helm drops
values that are no mapping where the chart has one, and a text for a switch is one, since it is written without quotes.
*/ -}}
{{- define "tessera.read" -}}
{{- $path := index . 0 -}}
{{- $tables := index . 2 -}}
{{- $keys := $tables.keys -}}
{{- if $path }}{{ range splitList "." $path }}{{ $keys = get $keys . }}{{ end }}{{ end -}}
{{- $found := dict -}}
{{- $notes := list -}}
{{- range $key, $value := index . 1 -}}
{{- $at := ternary $key (printf "%s.%s" $path $key) (empty $path) -}}
{{- $shape := get $keys $key -}}
{{- if or (kindIs "invalid" $value) (and (eq $at "global") (empty $value)) -}}
{{- else if not (hasKey $keys $key) }}{{ $notes = append $notes (printf "%s: no effect: %s" $at $tables.unknown) -}}
{{- else if kindIs "map" $shape -}}
{{- if kindIs "map" $value -}}
{{- $below := include "tessera.read" (list $at $value $tables) | fromJson -}}
{{- $_ := set $found $key $below.found -}}
{{- $notes = concat $notes ($below.notes | default list) -}}
{{- else }}{{ $notes = append $notes (printf "%s: no effect: %s" $at $tables.dropped) }}{{ end -}}
{{- else if and (eq $shape "switch") (kindIs "string" $value) -}}
{{- if not (hasKey $tables.switches $value) }}{{ fail (printf "%s: must be true or false, not %q" $at $value) }}{{ end -}}
{{- $_ := set $found $key (get $tables.switches $value) -}}
{{- else }}{{ $_ := set $found $key $value }}{{ end -}}
{{- end -}}
{{- toJson (dict "found" $found "notes" ($notes | default list)) -}}
{{- end -}}

{{- /* "true" if a value asks for anything: empty and false values, at all levels, do not. */ -}}
{{- define "tessera.isSet" -}}
{{- if kindIs "map" . -}}
{{- $any := "" -}}
{{- range . }}{{ if eq (include "tessera.isSet" .) "true" }}{{ $any = "true" }}{{ end }}{{ end -}}
{{- $any -}}
{{- else if . }}true{{ end -}}
{{- end -}}

{{- /* Text for true, as Go reads it. */ -}}
{{- define "tessera.truth" -}}
{{- $path := index . 0 -}}
{{- $text := index . 1 | default "" -}}
{{- if has $text (list "1" "t" "T" "true" "TRUE" "True") }}true
{{- else if not (has $text (list "" "0" "f" "F" "false" "FALSE" "False")) }}{{ fail (printf "%s: must be \"true\" or \"false\", not %q" $path $text) }}{{ end -}}
{{- end -}}

{{- /* The environment variables of a component, as a mapping. */ -}}
{{- define "tessera.env" -}}
{{- $found := dict -}}
{{- range (default dict .).env | default list }}{{ $_ := set $found .name (.value | default "") }}{{ end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* A ConfigMap that the values name: its name, its default entry, and the content that the chart makes. */ -}}
{{- define "tessera.namedConfig" -}}
{{- $path := index . 0 -}}
{{- $config := (index . 1 | default dict).config | default dict -}}
{{- $data := dict -}}
{{- if $config.create }}{{ $data = $config.data | default dict }}{{ end -}}
{{- if and $data (not $config.name) }}{{ fail (printf "%s.config.name: missing; config.create needs the name of the ConfigMap to make" $path) }}{{ end -}}
{{- toJson (dict "name" ($config.name | default "") "default" ($config.default | default "") "data" $data) -}}
{{- end -}}

{{- /* "true" if Tessera installs drivers. */ -}}
{{- define "tessera.drivers.wanted" -}}
{{- $nvidia := include "tessera.nvidia" . | fromJson -}}
{{- $driver := $nvidia.driver | default dict -}}
{{- $off := and (hasKey $driver "enabled") (eq (toString $driver.enabled) "false") -}}
{{- $choice := .Values.tessera.drivers -}}
{{- if eq $choice "install" -}}
{{- if $off }}{{ fail "driver.enabled: is false, while tessera.drivers is install; leave one of the two out" }}{{ end -}}true
{{- else if eq $choice "auto" -}}
{{- $policy := $nvidia.clusterPolicy | default dict -}}
{{- $deployed := not (and (hasKey $policy "deployCR") (eq (toString $policy.deployCR) "false")) -}}
{{- $named := or $driver.version $driver.repository $driver.image $driver.usePrecompiled $driver.useNvidiaDriverCRD ($driver.nvidiaDriverCRD | default dict).enabled -}}
{{- if and $deployed $named (not $off) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- /* What Tessera follows of NVIDIA's values, as JSON; as tessera.gpu_operator.settings_reader reads it. */ -}}
{{- define "tessera.settings" -}}
{{- $nvidia := include "tessera.nvidia" . | fromJson -}}
{{- $plugin := $nvidia.devicePlugin | default dict -}}
{{- $manager := $nvidia.migManager | default dict -}}
{{- $env := include "tessera.env" $plugin | fromJson -}}
{{- $managerEnv := include "tessera.env" $manager | fromJson -}}
{{- $paths := $nvidia.hostPaths | default dict -}}
{{- $sharing := include "tessera.namedConfig" (list "devicePlugin" $plugin) | fromJson -}}
{{- $layouts := include "tessera.namedConfig" (list "migManager" $manager) | fromJson -}}
{{- if and $sharing.default (not $sharing.name) }}{{ $sharing = dict "name" "" "default" "" "data" dict }}{{ end -}}
{{- if and $sharing.data $sharing.default (not (hasKey $sharing.data $sharing.default)) -}}
{{- fail (printf "devicePlugin.config.default: %q is none of config.data: %s" $sharing.default (keys $sharing.data | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if eq (toString $manager.enabled) "false" }}{{ $layouts = dict "name" "" "default" "" "data" dict }}{{ end -}}
{{- $strategy := ($nvidia.mig | default dict).strategy | default $env.MIG_STRATEGY | default "single" -}}
{{- if not (has $strategy (list "none" "single" "mixed")) }}{{ fail (printf "devicePlugin.env.MIG_STRATEGY: must be none, single or mixed, not %q" $strategy) }}{{ end -}}
{{- $lists := list -}}
{{- range $each := splitList "," ($env.DEVICE_LIST_STRATEGY | default "") -}}
{{- if trim $each }}{{ $lists = append $lists (trim $each) }}{{ end -}}
{{- end -}}
{{- $mps := ($plugin.mps | default dict).root | default $env.MPS_ROOT | default "" -}}
{{- $kubelet := $paths.kubeletRootDir | default "" -}}
{{- range $path, $folder := dict "devicePlugin.mps.root" $mps "hostPaths.kubeletRootDir" $kubelet -}}
{{- if and $folder (not (hasPrefix "/" $folder)) }}{{ fail (printf "%s: %q is no folder of the host; begin it with /" $path $folder) }}{{ end -}}
{{- end -}}
{{- $root := "" -}}
{{- $usual := (.Files.Get "files/notices.json" | fromJson).driverRoot -}}
{{- if eq (include "tessera.drivers.wanted" .) "true" }}{{ $root = $paths.driverInstallDir | default "" | trimSuffix "/" }}{{ end -}}
{{- if eq $root $usual }}{{ $root = "" }}{{ end -}}
{{- $folders := dict "driverRoot" $root -}}
{{- if $mps }}{{ $_ := set $folders "mpsRoot" (trimSuffix "/" $mps) }}{{ $_ := set $folders "mpsMemory" (printf "%s/shm" (trimSuffix "/" $mps)) }}{{ end -}}
{{- if $kubelet }}{{ $_ := set $folders "kubelet" (trimSuffix "/" $kubelet) }}{{ $_ := set $folders "podResources" (printf "%s/pod-resources" (trimSuffix "/" $kubelet)) }}{{ end -}}
{{- toJson (dict
  "given" (not (empty $nvidia))
  "strategy" $strategy
  "sharing" $sharing
  "layouts" $layouts
  "sharingPlace" (ternary (printf "%s/%s" .Release.Namespace $sharing.name) "tessera-system/sharing-profiles" (not (empty $sharing.name)))
  "layoutsPlace" (ternary (printf "%s/%s" .Release.Namespace $layouts.name) "tessera-system/mig-layouts" (not (empty $layouts.name)))
  "reboot" (eq (include "tessera.truth" (list "migManager.env.WITH_REBOOT" $managerEnv.WITH_REBOOT)) "true")
  "lists" (uniq $lists)
  "ids" ($env.DEVICE_ID_STRATEGY | default "")
  "specs" (eq (include "tessera.truth" (list "devicePlugin.env.PASS_DEVICE_SPECS" $env.PASS_DEVICE_SPECS)) "true")
  "mps" $mps
  "kubelet" $kubelet
  "health" (pick $env "DP_DISABLE_HEALTHCHECKS" "DP_ENABLE_HEALTHCHECKS")
  "folders" $folders
) -}}
{{- end -}}

{{- /* Arguments that replace those of the manifests with the same option, and follow the others. */ -}}
{{- define "tessera.args" -}}
{{- $base := index . 0 -}}
{{- $added := index . 1 -}}
{{- $options := dict -}}
{{- range $added }}{{ $_ := set $options (splitList "=" . | first) true }}{{ end -}}
{{- $args := list -}}
{{- range $base }}{{ if not (hasKey $options (splitList "=" . | first)) }}{{ $args = append $args . }}{{ end }}{{ end -}}
{{- concat $args $added | toJson -}}
{{- end -}}

{{- define "tessera.agent.args" -}}
{{- $settings := include "tessera.settings" . | fromJson -}}
{{- $values := .Values.tessera.agent -}}
{{- $args := list -}}
{{- if $settings.given -}}
{{- $args = append $args (printf "--sharing-config=%s" $settings.sharingPlace) -}}
{{- with $settings.sharing.default }}{{ $args = append $args (printf "--sharing-default=%s" .) }}{{ end -}}
{{- $args = append $args (printf "--mig-config=%s" $settings.layoutsPlace) -}}
{{- with $settings.layouts.default }}{{ $args = append $args (printf "--mig-default=%s" .) }}{{ end -}}
{{- $args = append $args (printf "--mig-strategy=%s" $settings.strategy) -}}
{{- if $settings.reboot }}{{ $args = append $args "--mig-reboot" }}{{ end -}}
{{- with $settings.lists }}{{ $args = append $args (printf "--device-list-strategy=%s" (join "," .)) }}{{ end -}}
{{- with $settings.ids }}{{ $args = append $args (printf "--device-id-strategy=%s" .) }}{{ end -}}
{{- if $settings.specs }}{{ $args = append $args "--pass-device-specs" }}{{ end -}}
{{- with $settings.mps }}{{ $args = append $args (printf "--mps-root=%s" .) }}{{ end -}}
{{- with $settings.kubelet }}{{ $args = append $args (printf "--kubelet-root=%s" .) }}{{ end -}}
{{- with $settings.folders.driverRoot }}{{ $args = append $args (printf "--driver-root=%s" .) }}{{ end -}}
{{- end -}}
{{- with .Values.tessera.monitoring.metricsAccess }}{{ if ne . "reviewed" }}{{ $args = append $args (printf "--metrics-access=%s" .) }}{{ end }}{{ end -}}
{{- $args = concat $args (include "tessera.claims.args" . | fromJsonArray) -}}
{{- if $values.migEvict }}{{ $args = append $args "--mig-evict" }}{{ end -}}
{{- with $values.memoryLimits }}{{ $args = append $args (printf "--memory-limits=%s" .) }}{{ end -}}
{{- with $values.simulate }}{{ $args = append $args (printf "--simulate=%s" .) }}{{ end -}}
{{- $base := (get (.Files.Get "files/workloads.json" | fromJson) "tessera-agent").args -}}
{{- include "tessera.args" (list $base (concat $args $values.extraArgs)) -}}
{{- end -}}

{{- define "tessera.agent.env" -}}
{{- $health := (include "tessera.settings" . | fromJson).health -}}
{{- $env := list -}}
{{- range (get (.Files.Get "files/workloads.json" | fromJson) "tessera-agent").env -}}
{{- if not (hasKey $health .name) }}{{ $env = append $env . }}{{ end -}}
{{- end -}}
{{- range $name, $value := $health }}{{ $env = append $env (dict "name" $name "value" $value) }}{{ end -}}
{{- toJson $env -}}
{{- end -}}

{{- define "tessera.controller.args" -}}
{{- $own := .Values.tessera -}}
{{- $args := list -}}
{{- if gt (int $own.controller.replaceFailed) 0 }}{{ $args = append $args (printf "--replace-failed=%d" (int $own.controller.replaceFailed)) }}{{ end -}}
{{- range $own.registries.plainHttp }}{{ $args = append $args (printf "--plain-http=%s" .) }}{{ end -}}
{{- range $own.startup.taints }}{{ $args = append $args (printf "--startup-taint=%s" .) }}{{ end -}}
{{- with $own.startup.deadline }}{{ $args = append $args (printf "--startup-deadline=%s" .) }}{{ end -}}
{{- with $own.controller.scaleUp }}{{ $args = append $args (printf "--scale-up=%s" .) }}{{ end -}}
{{- with $own.controller.reservations }}{{ $args = append $args (printf "--reservations=%s" .) }}{{ end -}}
{{- if $own.controller.preempt }}{{ $args = append $args "--preempt" }}{{ end -}}
{{- with $own.controller.moves }}{{ $args = append $args (printf "--moves=%s" .) }}{{ end -}}
{{- if gt (int $own.controller.movesPerHour) 0 }}{{ $args = append $args (printf "--moves-per-hour=%d" (int $own.controller.movesPerHour)) }}{{ end -}}
{{- with $own.controller.handover }}{{ $args = append $args (printf "--handover=%s" .) }}{{ end -}}
{{- with $own.controller.preferences }}{{ $args = append $args (printf "--preferences=%s" .) }}{{ end -}}
{{- with $own.monitoring.metricsAccess }}{{ if ne . "reviewed" }}{{ $args = append $args (printf "--metrics-access=%s" .) }}{{ end }}{{ end -}}
{{- $args = concat $args (include "tessera.claims.args" . | fromJsonArray) -}}
{{- $builds := $own.builds -}}
{{- with $builds.buildahImage }}{{ $args = append $args (printf "--buildah-image=%s" .) }}{{ end -}}
{{- range $system, $image := $builds.baseImages }}{{ $args = append $args (printf "--build-base-image=%s=%s" $system $image) }}{{ end -}}
{{- range $kernel, $image := $builds.dtkImages }}{{ $args = append $args (printf "--build-dtk-image=%s=%s" $kernel $image) }}{{ end -}}
{{- with $builds.downloads }}{{ $args = append $args (printf "--build-downloads=%s" .) }}{{ end -}}
{{- $authorities := ternary "tessera-registry-ca" "" (not (empty $own.registries.authorities)) -}}
{{- with $builds.caConfigMap | default $authorities }}{{ $args = append $args (printf "--build-ca-config-map=%s" .) }}{{ end -}}
{{- if not $builds.tlsVerify }}{{ $args = append $args "--no-build-tls-verify" }}{{ end -}}
{{- if not $builds.nvswitch }}{{ $args = append $args "--no-build-nvswitch" }}{{ end -}}
{{- if $own.registries.authorities }}{{ $args = append $args "--registry-ca=/etc/tessera/registry-ca/ca.crt" }}{{ end -}}
{{- $base := (get (.Files.Get "files/workloads.json" | fromJson) "tessera-controller").args -}}
{{- concat $base $args $own.controller.extraArgs | toJson -}}
{{- end -}}

{{- define "tessera.dashboard.args" -}}
{{- $own := .Values.tessera.dashboard -}}
{{- $args := list -}}
{{- range $own.origins }}{{ $args = append $args (printf "--origin=%s" .) }}{{ end -}}
{{- if ne $own.withoutToken "refuse" }}{{ $args = append $args (printf "--without-token=%s" $own.withoutToken) }}{{ end -}}
{{- with $own.prometheus.url }}{{ $args = append $args (printf "--prometheus=%s" .) }}{{ end -}}
{{- range $own.prometheus.labels }}{{ $args = append $args (printf "--prometheus-label=%s" .) }}{{ end -}}
{{- if $own.kedaPort }}{{ $args = append $args (printf "--keda-port=%d" (int $own.kedaPort)) }}{{ end -}}
{{- $base := (get (.Files.Get "files/workloads.json" | fromJson) "tessera-dashboard").args -}}
{{- concat $base $args $own.extraArgs | toJson -}}
{{- end -}}

{{- /* The port of KEDA's scaler: of the page's Service, and of the policy that opens it to KEDA's namespace alone. */ -}}
{{- define "tessera.dashboard.kedaPort" -}}
{{- with int .Values.tessera.dashboard.kedaPort }}{{ toYaml (list (dict "name" "keda" "port" . "targetPort" .)) }}{{ end -}}
{{- end -}}

{{- define "tessera.dashboard.kedaIngress" -}}
{{- with int .Values.tessera.dashboard.kedaPort }}
{{- $peer := dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" "keda")) -}}
{{- toYaml (list (dict "from" (list $peer) "ports" (list (dict "protocol" "TCP" "port" .)))) }}
{{- end -}}
{{- end -}}

{{- define "tessera.mps.args" -}}
{{- concat (get (.Files.Get "files/workloads.json" | fromJson) "tessera-mps").args .Values.tessera.mps.extraArgs | toJson -}}
{{- end -}}

{{- define "tessera.webhook.args" -}}
{{- $args := get (.Files.Get "files/workloads.json" | fromJson) "tessera-webhook" | dig "args" list -}}
{{- if .Values.tessera.webhook.certManager.enabled }}{{ $args = append $args "--certificate-secret=tessera-webhook-tls" }}{{ end -}}
{{- if ne .Values.tessera.claims.placement "scheduler" }}{{ $args = concat $args (include "tessera.claims.args" . | fromJsonArray) }}{{ end -}}
{{- $names := false -}}
{{- range .Values.tessera.controller.extraArgs -}}
{{- if $names }}{{ $args = append $args (printf "--pod-key=%s" .) }}{{ $names = false -}}
{{- else if has . (list "--usage-user" "--usage-label") }}{{ $names = true -}}
{{- else if regexMatch "^--usage-(user|label)=" . }}{{ $args = append $args (printf "--pod-key=%s" (splitn "=" 2 .)._1) }}{{ end -}}
{{- end -}}
{{- concat $args .Values.tessera.webhook.extraArgs | toJson -}}
{{- end -}}
