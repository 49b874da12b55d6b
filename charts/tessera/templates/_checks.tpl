{{- /*
Refuses values that Tessera's programs would refuse, with the path, the rule and what to write. The rules are those of
files/rules.json; the schema has types, names and ranges.
*/ -}}
{{- define "tessera.checks" -}}
{{- $rules := .Files.Get "files/rules.json" | fromJson -}}
{{- $problems := list -}}
{{- range $key, $value := omit .Values "tessera" -}}
{{- if and (kindIs "map" $value) (regexMatch "(?i)gpu[-_]?operator" $key) }}{{ $problems = append $problems (printf "%s: these are values of a chart with NVIDIA's as a subchart; give what is below %s" $key $key) }}{{ end -}}
{{- end -}}
{{- if and (eq .Values.tessera.image.repository $rules.image.name) (not (contains $rules.image.lab .Capabilities.KubeVersion.Version)) }}{{ $problems = append $problems $rules.image.problem }}{{ end -}}
{{- range $rule := $rules.values -}}
{{- $found := $.Values -}}
{{- range splitList "." $rule.path }}{{ if kindIs "map" $found }}{{ $found = get $found . }}{{ else }}{{ $found = "" }}{{ end }}{{ end -}}
{{- $texts := dict -}}
{{- if kindIs "map" $found }}{{ range $key, $value := $found }}{{ $_ := set $texts (printf "%s.%s" $rule.path $key) (ternary $key $value $rule.keys) }}{{ end -}}
{{- else if kindIs "slice" $found }}{{ range $number, $value := $found }}{{ $_ := set $texts (printf "%s.%d" $rule.path $number) $value }}{{ end -}}
{{- else }}{{ $_ := set $texts $rule.path ($found | default "") }}{{ end -}}
{{- range $path, $text := $texts -}}
{{- if and $text (not (regexMatch $rule.pattern (toString $text))) }}{{ $problems = append $problems (printf "%s: %q %s" $path (trunc 100 (toString $text)) $rule.needs) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $key, $program := $rules.programs -}}
{{- $problems = concat $problems (include "tessera.checks.options" (dict "path" (printf "tessera.%s.extraArgs" $key) "arguments" (index $.Values.tessera $key).extraArgs "program" $program) | fromJsonArray) -}}
{{- end -}}
{{- $problems = concat $problems (include "tessera.checks.groups" (dict "groups" $.Values.tessera.controller.nodeGroups "rules" $rules.nodeGroups) | fromJsonArray) -}}
{{- with .Values.tessera.dashboard.prometheus }}{{ if and .labels (not .url) }}{{ $problems = append $problems "tessera.dashboard.prometheus.url: missing; labels choose series of a Prometheus, as http://prometheus.example.com:9090" }}{{ end }}{{ end -}}
{{- with .Values.tessera.repairs }}
{{- if and (eq (.reboot | default "") "annotation") (not .rebootAnnotation) }}{{ $problems = append $problems "tessera.repairs.rebootAnnotation: missing; reboot: annotation needs it, as example.com/reboot=true" }}{{ end -}}
{{- if and (eq (.reboot | default "") "command") (not .rebootCommand) }}{{ $problems = append $problems "tessera.repairs.rebootCommand: missing; reboot: command needs it, as [/usr/local/bin/reboot-node]" }}{{ end -}}
{{- if regexMatch "^[^/]*(tessera[.]dev|kubernetes[.]io|k8s[.]io)/" (.rebootAnnotation | default "") }}{{ $problems = append $problems (printf "tessera.repairs.rebootAnnotation: %q belongs to Tessera or Kubernetes; use a domain of yours" (trunc 100 .rebootAnnotation)) }}{{ end -}}
{{- with .rebootCommand }}{{ if not (hasPrefix "/" (first .)) }}{{ $problems = append $problems (printf "tessera.repairs.rebootCommand: %q is no path on the host; begin it with /, without a shell" (trunc 100 (first .))) }}{{ end }}{{ end -}}
{{- end -}}
{{- with int .Values.tessera.dashboard.kedaPort }}
{{- if lt . 1024 }}{{ $problems = append $problems (printf "tessera.dashboard.kedaPort: %d is no port from 1024 to 65535; write 9443, or 0 for none" .) }}
{{- else if has . (list 8081 8088 8443) }}{{ $problems = append $problems (printf "tessera.dashboard.kedaPort: the page's process has %d already; write another, such as 9443" .) }}{{ end -}}
{{- end -}}
{{- if $problems }}{{ fail (printf "%s\n" (join "\n" $problems)) }}{{ end -}}
{{- end -}}

{{- /* The problems of the options that a list adds to a program, as JSON. An option has its value behind "=" or next. */ -}}
{{- define "tessera.checks.options" -}}
{{- $problems := list -}}
{{- $program := .program -}}
{{- $path := .path -}}
{{- $waiting := "" -}}
{{- range $number, $text := .arguments | default list -}}
{{- $place := printf "%s.%d" $path $number -}}
{{- $parts := splitn "=" 2 $text -}}
{{- if $waiting -}}
{{- with include "tessera.checks.value" (list $waiting (get $program.options $waiting) $text) }}{{ $problems = append $problems (printf "%s: %s" $place .) }}{{ end -}}
{{- $waiting = "" -}}
{{- else if not (hasKey $program.options $parts._0) -}}
{{- $problems = append $problems (printf "%s: %q is no option of %s; \"%s --help\" lists them" $place (trunc 100 $parts._0) $program.name $program.name) -}}
{{- else if (get $program.options $parts._0).flag -}}
{{- if contains "=" $text }}{{ $problems = append $problems (printf "%s: %s has no value; write %s" $place $parts._0 $parts._0) }}{{ end -}}
{{- else if contains "=" $text -}}
{{- with include "tessera.checks.value" (list $parts._0 (get $program.options $parts._0) $parts._1) }}{{ $problems = append $problems (printf "%s: %s" $place .) }}{{ end -}}
{{- else }}{{ $waiting = $text }}{{ end -}}
{{- end -}}
{{- if $waiting }}{{ $problems = append $problems (printf "%s: %s has no value; write %s=VALUE" $path $waiting $waiting) }}{{ end -}}
{{- toJson $problems -}}
{{- end -}}

{{- /* What is wrong with the value of an option; nothing if it may be used. */ -}}
{{- define "tessera.checks.value" -}}
{{- $name := index . 0 -}}
{{- $option := index . 1 -}}
{{- $text := index . 2 -}}
{{- $shown := printf "%s: %q" $name (trunc 100 $text) -}}
{{- if and $option.choices (not (has $text $option.choices)) }}{{ $shown }} is none of {{ join ", " $option.choices -}}
{{- else if and $option.pattern (not (regexMatch $option.pattern $text)) }}{{ $shown }} {{ $option.needs -}}
{{- else if and (hasKey $option "min") (lt (float64 $text) (float64 $option.min)) }}{{ $shown }} is less than {{ $option.min -}}
{{- else if and (hasKey $option "max") (gt (float64 $text) (float64 $option.max)) }}{{ $shown }} is more than {{ $option.max -}}
{{- end -}}
{{- end -}}
