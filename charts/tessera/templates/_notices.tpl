{{- /* A line for each setting of NVIDIA's chart without effect, as "tessera config check" prints them. */ -}}
{{- define "tessera.notices" -}}
{{- $tables := .Files.Get "files/notices.json" | fromJson -}}
{{- $read := include "tessera.read" (list "" (omit .Values "tessera") $tables) | fromJson -}}
{{- $values := $read.found -}}
{{- range $read.notes }}
{{ . }}
{{- end -}}
{{- $drivers := eq (include "tessera.drivers.wanted" .) "true" -}}
{{- $single := $tables.single -}}
{{- range $component, $value := $values -}}
{{- $reason := get $tables.components $component -}}
{{- if and $reason (eq (include "tessera.isSet" $value) "true") (ne (include "tessera.isOff" (list $values $component $tables.sandboxes)) "true") }}
{{ $component }}: no effect: {{ $reason }}
{{- end -}}
{{- end -}}
{{- $paths := $values.hostPaths | default dict -}}
{{- $moved := false -}}
{{- range $key, $usual := $tables.usualPaths }}{{ if not (has (get $paths $key | default "") (list "" $usual)) }}{{ $moved = true }}{{ end }}{{ end -}}
{{- if $moved }}
hostPaths: no effect: {{ $single.hostPaths }}
{{- end -}}
{{- range $component := list "cdi" "gfd" "devicePlugin" -}}
{{- if eq (toString (get $values $component | default dict).enabled) "false" }}
{{ $component }}.enabled: no effect: {{ get $single (printf "%s.enabled" $component) }}
{{- end -}}
{{- end -}}
{{- range $component := list "devicePlugin" "gfd" "migManager" -}}
{{- $fields := get $values $component | default dict -}}
{{- range $group := $tables.groups -}}
{{- $present := list -}}
{{- range $group.keys }}{{ if eq (include "tessera.isSet" (get $fields .)) "true" }}{{ $present = append $present . }}{{ end }}{{ end -}}
{{- if $present }}
{{ $component }}: no effect: {{ join ", " $present }}; {{ $group.reason }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ($values.gfd | default dict).env }}
gfd.env: no effect: {{ get $single "gfd.env" }}
{{- end -}}
{{- range $component, $variables := $tables.variables -}}
{{- range $name, $value := include "tessera.env" (get $values $component) | fromJson -}}
{{- if not (has $name $variables.followed) }}
{{ $component }}.env.{{ $name }}: no effect: {{ get $variables.known $name | default (get $single "unknown variable") }}
{{- end -}}
{{- end -}}
{{- $config := (get $values $component | default dict).config | default dict -}}
{{- if and $config.data (not $config.create) }}
{{ $component }}.config.data: no effect: {{ get $single "config.data" }}
{{- end -}}
{{- end -}}
{{- $config := ($values.devicePlugin | default dict).config | default dict -}}
{{- if and $config.default (not $config.name) }}
devicePlugin.config.default: no effect: {{ get $single "devicePlugin.config.default" }}
{{- end -}}
{{- $env := include "tessera.env" $values.devicePlugin | fromJson -}}
{{- $strategy := ($values.mig | default dict).strategy -}}
{{- if and $strategy $env.MIG_STRATEGY (ne $strategy $env.MIG_STRATEGY) }}
devicePlugin.env.MIG_STRATEGY: no effect: mig.strategy is {{ $strategy }}, and counts
{{- end -}}
{{- if $drivers -}}
{{- range $part, $keys := $tables.withDrivers -}}
{{- $fields := get $values $part | default dict -}}
{{- range $key, $reason := $keys }}{{ if eq (include "tessera.isSet" (get $fields $key)) "true" }}
{{ $part }}.{{ $key }}: no effect: {{ $reason }}
{{- end }}{{ end -}}
{{- end -}}
{{- else -}}
{{- $undecided := eq .Values.tessera.drivers "auto" -}}
{{- $policy := $values.clusterPolicy | default dict -}}
{{- if eq (toString $policy.deployCR) "false" }}{{ $undecided = false }}{{ end -}}
{{- range $part, $reason := $tables.withoutDrivers -}}
{{- if and (eq (include "tessera.isSet" (get $values $part)) "true") (ne (include "tessera.isOff" (list $values $part $tables.sandboxes)) "true") }}
{{ $part }}: no effect: {{ $reason }}{{ if and $undecided (eq $part "driver") }}: {{ get $single "unnamed driver" }}{{ end }}
{{- end -}}
{{- end -}}
{{- $root := $paths.driverInstallDir | default "" -}}
{{- if and $root (ne $root $tables.driverRoot) }}
hostPaths.driverInstallDir: no effect: {{ $tables.withoutDrivers.driver }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* "true" if the switch of a component, or of all virtual machines, turns it off. */ -}}
{{- define "tessera.isOff" -}}
{{- $values := index . 0 -}}
{{- $value := get $values (index . 1) -}}
{{- $machines := ($values.sandboxWorkloads | default dict).enabled -}}
{{- if and (has (index . 1) (index . 2)) (ne (toString $machines) "true") }}true
{{- else if kindIs "map" $value -}}
{{- if or (eq (toString $value.enabled) "false") (eq (toString $value.deployCR) "false") }}true{{ end -}}
{{- end -}}
{{- end -}}
